#include <filesystem>

#include "core/check.h"
#include "lab/report/page.h"
#include "models/write_text.h"
#include "tools/tour/tour.h"

namespace rootdk::tools {
namespace {

// The claims that take no more than a moment, measured now, as a page worth opening.
std::string write_report() {
  std::vector<lab::Result> results;
  for (int id : {1, 3, 4, 6, 10, 11, 14, 17, 19})
    results.push_back(lab::measure(lab::claim_by_id(id), lab::Bench{.quick = true}));
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "rootdk-report.html";
  write_text(path, lab::report_page(results, {.quick = true, .implementation = lab::kernel_in_use()}));
  return path.string();
}

}  // namespace

void show_next(const Style& style) {
  Table table(2);
  const auto add = [&](const char* command, const char* what) { table.add({style.green(command), what}); };
  add("build/rootdk lab --report report.html", "27 claims about attention, measured on this machine");
  add("build/rootdk live", "a page that runs the library and a model in your browser");
  add("build/rootdk inspect MODEL --prompt TEXT", "what every head of a checkpoint does");
  add("build/rootdk explain --q-len 4096 --causal", "which kernel a call uses here, and why no other");
  add("build/rootdk attend CASE.safetensors --out F", "forward, backward and statistics on your own tensors");
  add("build/rootdk bench forward", "speed, against this machine's measured peak");
  add("build/rootdk --help", "every verb");
  add("README.md", "the C++ example, and where each feature is specified");
  add("docs/operation.md", "the mathematics, with every edge case");
  std::fputs(table.text().c_str(), stdout);
  try {
    print_line("\n  Nine claims, measured just now, as a page for your browser: " + style.bold(write_report()));
  } catch (const Error& error) {
    print_line(format("\n  The report could not be written: %s", error.what()));
  }
}

}  // namespace rootdk::tools
