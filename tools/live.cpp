// rootdk live [MODEL]: a page that runs the library and a model in the browser.

#include <cstdio>
#include <memory>

#include "lab/live/page.h"
#include "models/write_text.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace rootdk::tools {
namespace {

struct LiveVerb {
  std::string model = "builtin", out = "live.html";
};

void run_live(const LiveVerb& options) {
  require_writable(options.out);
  const std::string page = lab::live_page(options.model);
  write_text(options.out, page);
  std::printf("%s: %.1f MB, one file. Open it in a browser; it needs no network.\n", options.out.c_str(),
              static_cast<double>(page.size()) * 1e-6);
}

}  // namespace

void add_live_command(Command& program) {
  Command* verb = program.add_subcommand("live", "A page that runs the library and a model in the browser");
  auto options = std::make_shared<LiveVerb>();
  verb->add_option("MODEL", options->model, "Folder with config.json, model.safetensors and tokenizer.json; or builtin")
      ->show_default();
  verb->add_option("--out", options->out, "Where to write the page")->type_name("FILE")->show_default();
  verb->callback([options] { run_live(*options); });
}

}  // namespace rootdk::tools
