// rootdk forward MODEL: one forward pass of a checkpoint on token ids from a file.

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "models/builtin.h"
#include "models/checkpoint.h"
#include "models/token_ids.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace rootdk::tools {
namespace {

struct ForwardVerb {
  std::string model, inputs, out;
  bool no_weights = false, json = false;
  int threads = 0;
};

std::vector<std::int32_t> read_ids(const SafetensorsFile& file, const std::string& name, std::int64_t batch) {
  return file.contains(name) ? token_ids(file.tensor(name), name, batch) : std::vector<std::int32_t>();
}

ModelInput read_input(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  require(file.contains("input_ids"), path, ": has no input_ids");
  ModelInput input;
  input.ids = read_ids(file, "input_ids", 0);
  input.batch = file.tensor("input_ids").size(0);
  input.mask = read_ids(file, "attention_mask", input.batch);
  input.token_types = read_ids(file, "token_type_ids", input.batch);
  input.decoder_ids = read_ids(file, "decoder_input_ids", input.batch);
  return input;
}

void run_forward(const ForwardVerb& options) {
  const Transformer model = load_model(model_folder(options.model));
  const ModelInput input = read_input(options.inputs);
  const bool both = model.config().encoder.has_value();
  require(!both || !input.decoder_ids.empty(), options.inputs, ": has no decoder_input_ids, which ",
          model.config().architecture, " needs");
  Context context{.executor = options.threads > 0 ? &shared_executor(options.threads) : nullptr};
  const ModelResult result = model.forward(context, input, {.weights = !options.no_weights});

  const bool logits = model.config().output == ModelOutput::logits;
  const Tensor& output = std::as_const(*result.output).value();
  const std::int64_t length = output.size(0) / input.batch;
  std::vector<NamedTensor> tensors{{logits ? "logits" : "last_hidden_state",
                                    ConstTensorView(output.view().as<float>(), {input.batch, length, output.size(1)})}};
  auto add = [&](const std::string& prefix, const std::vector<AttentionCapture>& captures) {
    if (options.no_weights) return;
    for (std::size_t layer = 0; layer < captures.size(); ++layer) {
      tensors.push_back({prefix + std::to_string(layer), captures[layer].weights});
    }
  };
  add(both ? "decoder_attention." : "attention.", result.attention);
  add("encoder_attention.", result.encoder_attention);
  add("cross_attention.", result.cross_attention);
  write_safetensors(options.out, tensors);

  if (options.json) {
    nlohmann::ordered_json report = {{"model", options.model},
                                     {"architecture", model.config().architecture},
                                     {"parameters", model.parameter_count()},
                                     {"out", options.out}};
    for (const NamedTensor& tensor : tensors) {
      report["tensors"][tensor.name] =
          std::vector<std::int64_t>(tensor.view.shape.begin(), tensor.view.shape.begin() + tensor.view.rank);
    }
    std::puts(report.dump(2).c_str());
  } else {
    std::printf("%s: %s of %lld parameters\n", options.model.c_str(), model.config().architecture.c_str(),
                static_cast<long long>(model.parameter_count()));
    for (const NamedTensor& tensor : tensors)
      std::printf("  %s %s\n", tensor.name.c_str(), describe(tensor.view).c_str());
    std::printf("written to %s\n", options.out.c_str());
  }
}

}  // namespace

void add_forward_command(Command& program) {
  Command* verb = program.add_subcommand("forward", "Run a checkpoint on token ids: logits and attention weights");
  auto options = std::make_shared<ForwardVerb>();
  verb->add_option("MODEL", options->model, "Folder with config.json and model.safetensors; or builtin")->required();
  verb->add_option("--inputs", options->inputs,
                   "safetensors with input_ids and, where wanted, attention_mask, token_type_ids, decoder_input_ids")
      ->required()
      ->type_name("FILE");
  verb->add_option("--out", options->out, "safetensors to write")->required()->type_name("FILE");
  verb->add_flag("--no-weights", options->no_weights, "Leave the attention weights out");
  add_threads_option(*verb, options->threads);
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options] { run_forward(*options); });
}

}  // namespace rootdk::tools
