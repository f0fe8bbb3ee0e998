#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/check.h"
#include "lab/report/page.h"
#include "tools/tour/tour.h"

namespace rootdk::tools {
namespace {

// Into a new file of a name that cannot be foreseen: where everybody may write, a link could wait under a known one.
std::string write_temporary(const std::string& page) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
  require(!error, "the folder for temporary files (TMPDIR): ", error.message());
  std::string path = (folder / "rootdk-report-XXXXXX.html").string();
  const int descriptor = ::mkstemps(path.data(), 5);
  require(descriptor >= 0, folder.string(), ": ", std::strerror(errno));
  ::fchmod(descriptor, 0644);
  const ssize_t written = ::write(descriptor, page.data(), page.size());
  const int reason = errno;
  ::close(descriptor);
  require(written == static_cast<ssize_t>(page.size()), path, ": ", std::strerror(reason));
  return path;
}

// The claims that take no more than a moment, measured now, as a page worth opening.
std::string write_report() {
  std::vector<lab::Result> results;
  for (int id : {1, 3, 4, 6, 10, 11, 14, 17, 19})
    results.push_back(lab::measure(lab::claim_by_id(id), lab::Bench{.quick = true}));
  return write_temporary(lab::report_page(results, {.quick = true, .implementation = lab::kernel_in_use()}));
}

}  // namespace

void show_next(const Style& style) {
  Table table(2);
  const auto add = [&](const char* command, const char* what) { table.add({style.green(command), what}); };
  add("build/rootdk lab --report report.html", "27 claims, measured here");
  add("build/rootdk live", "the library in your browser");
  add("build/rootdk inspect MODEL --prompt TEXT", "what every head does");
  add("build/rootdk explain --q-len 4096 --causal", "which kernel runs, and why");
  add("build/rootdk attention CASE --out FILE", "on your own tensors");
  add("build/rootdk bench forward", "speed, against the peak");
  add("build/rootdk --help", "every command");
  add("README.md", "examples, where to read on");
  add("docs/operation.md", "the mathematics");
  std::fputs(table.text().c_str(), stdout);
  try {
    const std::string path = write_report();
    print_line("\n  Nine claims, measured just now, as a page for your browser:");
    print_line("    " + style.bold(path));
  } catch (const Error& error) {
    print_text(format("The report could not be written: %s", error.what()));
  }
}

}  // namespace rootdk::tools
