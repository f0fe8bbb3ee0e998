#include "tools/tour/tour.h"

namespace rootdk::tools {

void show_next(const Style& style) {
  Table table(2);
  const auto add = [&](const char* command, const char* what) { table.add({style.green(command), what}); };
  add("build/rootdk explain --q-len 4096 --causal", "which kernel a call uses here, and why no other");
  add("build/rootdk attend CASE.safetensors --out F", "forward, backward and statistics on your own tensors");
  add("build/rootdk bench forward", "speed, against this machine's measured peak");
  add("build/rootdk --help", "every verb");
  add("README.md", "the C++ example, and where each feature is specified");
  add("docs/operation.md", "the mathematics, with every edge case");
  std::fputs(table.text().c_str(), stdout);
}

}  // namespace rootdk::tools
