// rootdk attention: one attention call on the tensors of a file, forward, backward and statistics.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/check.h"
#include "models/safetensors.h"
#include "tools/arguments.h"
#include "tools/attention_case.h"
#include "tools/commands.h"
#include "tools/options.h"

namespace rootdk::tools {
namespace {

struct AttentionOptions {
  std::string case_path, out_path, dtype;
  ExecutionOptions execution;
  bool json = false;
};

// What one of the two passes did.
struct Pass {
  std::string implementation;
  double milliseconds = 0;
};

// A case on its device, with room for every result.
class AttendCall {
 public:
  AttendCall(const AttentionCase& input, Memory& memory, const ExecutionOptions& options)
      : input_(input), memory_(memory), target_(options.target), execution_(options.execution()) {
    q_ = input.view("q", memory);
    k_ = input.view("k", memory);
    v_ = input.view("v", memory);
    params_ = input.params(memory);
  }

  Pass forward() {
    for (const ConstTensorView& view : {q_, k_, v_}) {
      require(view.rank == 4, "attention: expected q, k and v of rank 4, got ", describe(q_), ", ", describe(k_), ", ",
              describe(v_));
    }
    const std::int64_t batch = q_.size(0), heads = q_.size(1), q_len = q_.size(2), kv_len = k_.size(2);
    out_ = result("out", input_.dtype(), {batch, heads, q_len, v_.size(3)});
    const DType small = input_.small_dtype();
    const AttentionStats stats{.lse = result("stats_lse", small, {batch, heads, q_len}),
                               .max_logit = result("stats_max_logit", small, {batch, heads, q_len}),
                               .max_weight = result("stats_max_p", small, {batch, heads, q_len}),
                               .entropy = result("stats_entropy", small, {batch, heads, q_len}),
                               .sum_p2 = result("stats_sum_p2", small, {batch, heads, q_len}),
                               .column_mass = result("stats_column_mass", small, {batch, heads, kv_len})};
    lse_ = stats.lse;
    require_known_target(explain(q_, k_, v_, out_, params_, stats, execution_), target_);
    take_workspace(attention_workspace(q_, k_, v_, out_, params_, stats));
    const Explanation explanation = explain(q_, k_, v_, out_, params_, stats, execution_);
    return timed(explanation, [&] { attention(q_, k_, v_, out_, params_, stats, execution_); });
  }

  Pass backward() {
    const AttentionSaved saved{.q = q_, .k = k_, .v = v_, .out = out_, .lse = lse_, .entropy = {}};
    const AttentionUpstream upstream{.out = input_.view("grad_out", memory_), .lse = {}, .entropy = {}};
    const AttentionGradients gradients{.q = gradient("q", q_),
                                       .k = gradient("k", k_),
                                       .v = gradient("v", v_),
                                       .bias = gradient("bias", params_.bias),
                                       .relative_table = gradient("relative_table", params_.logits.relative_table),
                                       .alibi_slopes = gradient("alibi_slopes", params_.logits.alibi_slopes),
                                       .sinks = gradient("sinks", params_.logits.sinks),
                                       .additive_v = gradient("additive_v", params_.additive_v),
                                       .column_mass = {}};
    take_workspace(attention_backward_workspace(saved, upstream, gradients, params_));
    const Explanation explanation = explain_backward(saved, upstream, gradients, params_, execution_);
    return timed(explanation, [&] { attention_backward(saved, upstream, gradients, params_, execution_); });
  }

  // Everything on the host, as it goes into the file: 16-bit results as F32, which holds them exactly and which every
  // reader knows.
  std::map<std::string, Tensor> fetch() const {
    std::map<std::string, Tensor> tensors;
    for (const auto& [name, view] : results_) {
      Tensor host = memory_.fetch(view);
      tensors.emplace(name, size_of(host.dtype()) == 2 ? convert(host, DType::f32) : std::move(host));
    }
    return tensors;
  }

 private:
  TensorView result(const std::string& name, DType dtype, std::initializer_list<std::int64_t> shape) {
    return results_[name] = memory_.allocate(dtype, std::span(shape.begin(), shape.size()));
  }

  TensorView gradient(const std::string& name, const ConstTensorView& of) {
    if (!of.defined()) return {};
    return results_["grad_" + name] =
               memory_.allocate(of.dtype, std::span(of.shape.data(), static_cast<std::size_t>(of.rank)));
  }

  void take_workspace(std::size_t bytes) {
    execution_.cuda.workspace = memory_.scratch(bytes);
    execution_.cuda.workspace_bytes = bytes;
  }

  template <class Call>
  Pass timed(const Explanation& explanation, Call call) {
    const auto start = std::chrono::steady_clock::now();
    call();
    memory_.wait();
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    return {.implementation = explanation.chosen, .milliseconds = elapsed.count()};
  }

  const AttentionCase& input_;
  Memory& memory_;
  const std::string& target_;
  Execution execution_;
  AttentionParams params_;
  ConstTensorView q_, k_, v_;
  TensorView out_, lse_;
  std::map<std::string, TensorView> results_;
};

std::vector<double> as_doubles(const Tensor& tensor) {
  const Tensor wide = convert(tensor, DType::f64);
  const std::span<const double> values = wide.values<double>();
  return {values.begin(), values.end()};
}

// NaN where there are no rows.
double largest(const Tensor& tensor) {
  double result = std::numeric_limits<double>::quiet_NaN();
  for (double value : as_doubles(tensor)) result = std::fmax(result, value);
  return result;
}

double mean(const Tensor& tensor) {
  const std::vector<double> values = as_doubles(tensor);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

struct Summary {
  const AttentionCase& input;
  const AttentionOptions& options;
  const std::map<std::string, Tensor>& results;
  Pass forward;
  std::optional<Pass> backward;
};

void print_text(const Summary& s) {
  for (const char* name : {"q", "k", "v"}) {
    std::printf("%-9s %s\n", name, describe(s.input.tensors.at(name).view()).c_str());
  }
  std::printf("forward   %s, %.3f ms\n", s.forward.implementation.c_str(), s.forward.milliseconds);
  if (s.backward) std::printf("backward  %s, %.3f ms\n", s.backward->implementation.c_str(), s.backward->milliseconds);
  std::printf("softmax   largest logit %.6g, mean entropy %.6g nats\n", largest(s.results.at("stats_max_logit")),
              mean(s.results.at("stats_entropy")));
  if (!s.options.out_path.empty()) {
    std::printf("written   %zu tensors to %s\n", s.results.size(), s.options.out_path.c_str());
  }
}

void print_json(const Summary& s) {
  using Json = nlohmann::ordered_json;
  const auto pass = [](const Pass& p) {
    return Json{{"implementation", p.implementation}, {"milliseconds", p.milliseconds}};
  };
  const auto shape = [](const Tensor& t) { return Json(std::vector(t.shape().begin(), t.shape().end())); };
  Json result = {
      {"case", s.options.case_path}, {"dtype", name_of(s.input.dtype())}, {"device", s.options.execution.device}};
  for (const char* name : {"q", "k", "v"}) result["shape"][name] = shape(s.input.tensors.at(name));
  result["forward"] = pass(s.forward);
  result["backward"] = s.backward ? pass(*s.backward) : Json();
  result["largest_max_logit"] = largest(s.results.at("stats_max_logit"));
  result["mean_entropy"] = mean(s.results.at("stats_entropy"));
  result["out"] = s.options.out_path.empty() ? Json() : Json(s.options.out_path);
  for (const auto& [name, tensor] : s.results) result["tensors"][name] = shape(tensor);
  std::puts(result.dump(2).c_str());
}

void write_results(const std::string& path, const std::map<std::string, Tensor>& results) {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : results) tensors.push_back({name, tensor});
  write_safetensors(path, tensors);
}

void run_attention(const AttentionOptions& options) {
  const AttentionCase input = read_attention_case(options.case_path, parse_dtype(options.dtype));
  for (const std::string& warning : input.warnings) std::fprintf(stderr, "rootdk: warning: %s\n", warning.c_str());
  const std::unique_ptr<Memory> memory = make_memory(options.execution.device_kind());
  AttendCall call(input, *memory, options.execution);
  const Pass forward = call.forward();
  const std::optional<Pass> backward = input.has_gradient() ? std::optional(call.backward()) : std::nullopt;
  const std::map<std::string, Tensor> results = call.fetch();
  if (!options.out_path.empty()) write_results(options.out_path, results);
  const Summary summary{
      .input = input, .options = options, .results = results, .forward = forward, .backward = backward};
  options.json ? print_json(summary) : print_text(summary);
}

}  // namespace

void add_attention_command(Command& program) {
  Command* verb = program.add_subcommand("attention", "Run one attention call on the tensors of a file");
  verb->alias("attend");  // its name in version 0.1
  verb->footer("Backward runs where the file has grad_out. docs/command-line.md describes the format of the file.");
  auto options = std::make_shared<AttentionOptions>();
  verb->add_option("case", options->case_path, "Tensors q, k, v, ... and the metadata \"case\"")
      ->required()
      ->type_name("CASE.safetensors");
  verb->add_option("--out", options->out_path, "Write out, grad_* and stats_* to this file")->type_name("FILE");
  add_dtype_option(*verb, options->dtype, "Convert q, k, v, grad_out to this type (default: the type of q)");
  options->execution.add_to(*verb);
  verb->add_flag("--json", options->json, "Print the summary as JSON");
  verb->callback([options] { run_attention(*options); });
}

}  // namespace rootdk::tools
