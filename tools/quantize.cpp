// rootdk quantize MODEL --out DIR: a checkpoint with int8 or int4 weights.

#include <cstdio>
#include <memory>

#include "models/builtin.h"
#include "models/quantised_checkpoint.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace rootdk::tools {
namespace {

struct QuantizeVerb {
  std::string model, out;
  std::optional<WeightFormat> weights = WeightFormat::i8;
  int threads = 0;
};

void run_quantize(const QuantizeVerb& options) {
  const std::uint64_t bytes = write_quantised(model_folder(options.model), *options.weights, options.out,
                                              options.threads > 0 ? &shared_executor(options.threads) : nullptr);
  std::printf("%s: %s weights of %s, %.1f MB\n", options.out.c_str(), std::string(name_of(*options.weights)).c_str(),
              options.model.c_str(), static_cast<double>(bytes) / 1e6);
}

}  // namespace

void add_quantize_command(Command& program) {
  Command* verb = program.add_subcommand("quantize", "Write a checkpoint with int8 or int4 weights");
  auto options = std::make_shared<QuantizeVerb>();
  verb->add_option("MODEL", options->model, "Folder with config.json and model.safetensors; or builtin")->required();
  verb->add_option("--out", options->out, "Folder to write")->required()->type_name("DIR");
  add_weights_option(*verb, options->weights, "A scale for each row, or for each 32 columns (default: int8)");
  add_threads_option(*verb, options->threads);
  verb->callback([options] { run_quantize(*options); });
}

}  // namespace rootdk::tools
