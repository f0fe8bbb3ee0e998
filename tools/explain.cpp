// rootdk explain: which implementation a call would use here, and why not the others.

#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "tools/arguments.h"
#include "tools/attention_case.h"
#include "tools/commands.h"
#include "tools/options.h"
#include "tools/terminal.h"

namespace rootdk::tools {
namespace {

struct ExplainOptions {
  std::string case_path, dtype;
  std::int64_t batch = 1, heads = 8, kv_heads = 0, q_len = 1024, kv_len = 0, head_dim = 64, value_dim = 0;
  std::string score = "dot";
  double softcap = 0, dropout = 0;
  bool causal = false;
  std::int64_t window_left = -1, window_right = -1;
  bool kv_lengths = false, packed = false, mask = false, block_mask = false;
  bool bias = false, alibi = false, relative_table = false, sinks = false;
  bool stats = false, column_mass = false, pooled_map = false, weights = false;
  bool backward = false, json = false;
  ExecutionOptions execution;
};

// The views of a call that is only asked about. Its elements are not read, except lengths and starts:
// those are real, the others are shapes over a few bytes, so that a question about a million keys takes no memory.
class Question {
 public:
  explicit Question(const ExplainOptions& o) : device_{.kind = o.execution.device_kind(), .index = 0} {
    const DType dtype = parse_dtype(o.dtype).value_or(DType::f32);
    small_ = dtype == DType::f64 ? DType::f64 : DType::f32;
    const std::int64_t kv_heads = o.kv_heads ? o.kv_heads : o.heads, kv_len = o.kv_len ? o.kv_len : o.q_len;
    const std::int64_t value_dim = o.value_dim ? o.value_dim : o.head_dim;
    q = shaped(dtype, {o.batch, o.heads, o.q_len, o.head_dim});
    k = shaped(dtype, {o.batch, kv_heads, kv_len, o.head_dim});
    v = shaped(dtype, {o.batch, kv_heads, kv_len, value_dim});
    out = shaped(dtype, {o.batch, o.heads, o.q_len, value_dim});
    set_scalars(o);
    set_masks(o, kv_len);
    set_logit_terms(o, kv_len);
    set_stats(o, kv_len);
  }

  // A call that a file describes: everything in it is real.
  explicit Question(const AttentionCase& input, Memory& memory) : small_(input.small_dtype()) {
    q = input.view("q", memory);
    k = input.view("k", memory);
    v = input.view("v", memory);
    params = input.params(memory);
    device_ = q.device;
    require(q.rank == 4 && v.rank == 4, "attention: expected q and v of rank 4, got ", describe(q), " and ",
            describe(v));
    out = shaped(q.dtype, {q.size(0), q.size(1), q.size(2), v.size(3)});
    stats.lse = shaped(small_, {q.size(0), q.size(1), q.size(2)});
  }

  Explanation ask(bool backward, const Execution& execution) const {
    if (!backward) return explain(q, k, v, out, params, stats, execution);
    const ConstTensorView lse = shaped(small_, {q.size(0), q.size(1), q.size(2)});
    return explain_backward({.q = q, .k = k, .v = v, .out = out, .lse = lse, .entropy = {}},
                            {.out = out, .lse = {}, .entropy = {}}, gradients(), params, execution);
  }

  ConstTensorView q, k, v;
  TensorView out;
  AttentionParams params;
  AttentionStats stats;

 private:
  // Each view has an address of its own: outputs are checked against inputs.
  TensorView shaped(DType dtype, std::initializer_list<std::int64_t> shape) const {
    constexpr std::size_t kAlignment = 64, kViews = 64;
    alignas(kAlignment) static std::byte anchors[kAlignment * kViews];
    std::byte* anchor = anchors + kAlignment * (views_++ % kViews);
    return TensorView(anchor, dtype, std::span(shape.begin(), shape.size()), device_);
  }

  TensorView like(const ConstTensorView& view) const {
    if (!view.defined()) return {};
    return TensorView(shaped(view.dtype, {0}).data, view.dtype,
                      std::span(view.shape.data(), static_cast<std::size_t>(view.rank)), device_);
  }

  ConstTensorView integers(std::vector<std::int32_t> values) {
    const auto& kept = integers_.emplace_back(std::move(values));
    return ConstTensorView(kept.data(), {static_cast<std::int64_t>(kept.size())}, device_);
  }

  void set_scalars(const ExplainOptions& o) {
    if (o.score == "cosine") params.score = Score::cosine;
    if (o.score == "additive") {
      params.score = Score::additive;
      params.additive_v = shaped(small_, {o.heads, o.head_dim});
    }
    params.logits.softcap = o.softcap;
    params.dropout = o.dropout;
    params.causal = o.causal;
    params.window_left = o.window_left;
    params.window_right = o.window_right;
  }

  void set_masks(const ExplainOptions& o, std::int64_t kv_len) {
    constexpr std::int64_t kBlock = 64;
    const auto length = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
    if (o.kv_lengths) {
      params.kv_lengths =
          integers(std::vector(static_cast<std::size_t>(std::max<std::int64_t>(0, o.batch)), length(kv_len)));
    }
    if (o.mask) params.mask = shaped(DType::boolean, {o.batch, o.heads, o.q_len, kv_len});
    if (o.block_mask) {
      params.block_mask =
          shaped(DType::boolean, {1, 1, (o.q_len + kBlock - 1) / kBlock, (kv_len + kBlock - 1) / kBlock});
      params.block_q = params.block_kv = kBlock;
    }
    if (o.packed) {
      params.q_starts = integers({0, length(o.q_len / 2), length(o.q_len)});
      params.kv_starts = integers({0, length(kv_len / 2), length(kv_len)});
    }
  }

  void set_logit_terms(const ExplainOptions& o, std::int64_t kv_len) {
    if (o.bias) params.bias = shaped(small_, {o.batch, o.heads, o.q_len, kv_len});
    if (o.alibi) params.logits.alibi_slopes = shaped(small_, {o.heads});
    if (o.relative_table) {
      params.logits.relative_table = shaped(small_, {o.heads, 257});
      params.logits.relative_zero = 128;
    }
    if (o.sinks) params.logits.sinks = shaped(small_, {o.heads});
  }

  void set_stats(const ExplainOptions& o, std::int64_t kv_len) {
    if (o.stats) {
      stats.lse = stats.max_logit = stats.max_weight = stats.entropy = stats.sum_p2 =
          shaped(small_, {o.batch, o.heads, o.q_len});
    }
    if (o.column_mass) stats.column_mass = shaped(small_, {o.batch, o.heads, kv_len});
    if (o.pooled_map) {
      stats.pooled_map =
          shaped(small_, {o.batch, o.heads, std::min<std::int64_t>(64, o.q_len), std::min<std::int64_t>(64, kv_len)});
    }
    if (o.weights) stats.weights = shaped(small_, {o.batch, o.heads, o.q_len, kv_len});
  }

  AttentionGradients gradients() const {
    return {.q = like(q),
            .k = like(k),
            .v = like(v),
            .bias = like(params.bias),
            .relative_table = like(params.logits.relative_table),
            .alibi_slopes = like(params.logits.alibi_slopes),
            .sinks = like(params.logits.sinks),
            .additive_v = like(params.additive_v),
            .column_mass = {}};
  }

  Device device_;
  DType small_ = DType::f32;
  std::deque<std::vector<std::int32_t>> integers_;
  mutable std::size_t views_ = 0;
};

void print_text(const Question& question, const Explanation& answer, bool backward) {
  const Style style = Style::of_stdout();
  std::printf("%s of q %s, k %s, v %s\n", backward ? "attention_backward" : "attention", describe(question.q).c_str(),
              describe(question.k).c_str(), describe(question.v).c_str());
  Table table(2);
  for (const auto& [name, refusal] : answer.candidates) {
    const bool chosen = name == answer.chosen;
    const std::string reason = chosen            ? style.green("runs this call")
                               : refusal.empty() ? "could, but is asked later"
                                                 : refusal;
    table.add({(chosen ? "→ " : "  ") + (chosen ? style.bold(name) : name), reason});
  }
  std::fputs(table.text("").c_str(), stdout);
}

void print_json(const Question& question, const Explanation& answer, bool backward) {
  nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
  for (const auto& [name, refusal] : answer.candidates) {
    candidates.push_back({{"name", name}, {"accepts", refusal.empty()}, {"refusal", refusal}});
  }
  const nlohmann::ordered_json result = {{"operation", backward ? "attention_backward" : "attention"},
                                         {"q", describe(question.q)},
                                         {"k", describe(question.k)},
                                         {"v", describe(question.v)},
                                         {"chosen", answer.chosen},
                                         {"candidates", candidates}};
  std::puts(result.dump(2).c_str());
}

void run_explain(const ExplainOptions& options) {
  const auto answer = [&](const Question& question) {
    const Explanation explanation = question.ask(options.backward, options.execution.execution());
    require_known_target(explanation, options.execution.target);
    // Wrong arguments have no candidates: the call itself would have thrown this.
    require(!explanation.candidates.empty(), explanation.error);
    options.json ? print_json(question, explanation, options.backward)
                 : print_text(question, explanation, options.backward);
    // The reasons of each stand above: the error's first line is enough.
    require(!explanation.chosen.empty(), explanation.error.substr(0, explanation.error.find(":\n")));
  };
  if (options.case_path.empty()) {
    answer(Question(options));
    return;
  }
  const AttentionCase input = read_attention_case(options.case_path, parse_dtype(options.dtype));
  const std::unique_ptr<Memory> memory = make_memory(options.execution.device_kind());
  answer(Question(input, *memory));
}

void add_shape_options(Command& verb, ExplainOptions& o) {
  const auto size = [&](const char* name, std::int64_t& value, const char* help) {
    verb.add_option(name, value, help)->between(0, std::int64_t{1} << 40)->type_name("N")->group("Shape");
  };
  size("--batch", o.batch, "Sequences (default: 1)");
  size("--heads", o.heads, "Query heads (default: 8)");
  size("--kv-heads", o.kv_heads, "Key heads (default: as many as query heads)");
  size("--q-len", o.q_len, "Queries a sequence (default: 1024)");
  size("--kv-len", o.kv_len, "Keys a sequence (default: as many as queries)");
  size("--head-dim", o.head_dim, "Size of a query and a key (default: 64)");
  size("--value-dim", o.value_dim, "Size of a value (default: as a key)");
}

void add_feature_options(Command& verb, ExplainOptions& o) {
  const auto flag = [&](const char* name, bool& value, const char* help) {
    verb.add_flag(name, value, help)->group("Features");
  };
  verb.add_option("--score", o.score, "The score of a query and a key (default: dot)")
      ->one_of({"dot", "cosine", "additive"})
      ->group("Features");
  verb.add_option("--softcap", o.softcap, "Cap of the scaled score")->type_name("X")->group("Features");
  verb.add_option("--dropout", o.dropout, "Probability that a weight is dropped")->type_name("P")->group("Features");
  flag("--causal", o.causal, "Keys up to the query's position");
  verb.add_option("--window-left", o.window_left, "Keys kept to the left (-1: all)")->type_name("N")->group("Features");
  verb.add_option("--window-right", o.window_right, "Keys kept to the right (-1: all)")
      ->type_name("N")
      ->group("Features");
  flag("--kv-lengths", o.kv_lengths, "A length for each sequence (padding)");
  flag("--packed", o.packed, "Two packed sequences (q_starts, kv_starts)");
  flag("--mask", o.mask, "A boolean mask");
  flag("--block-mask", o.block_mask, "A block-sparse mask of 64 x 64 blocks");
  flag("--bias", o.bias, "A bias on the logits");
  flag("--alibi", o.alibi, "ALiBi slopes");
  flag("--relative-table", o.relative_table, "A table over the distance (T5)");
  flag("--sinks", o.sinks, "A learned sink per head");
  flag("--stats", o.stats, "The statistics of a row: lse, max_logit, max_weight, entropy, sum_p2");
  flag("--column-mass", o.column_mass, "The weight that each key receives");
  flag("--pooled-map", o.pooled_map, "A 64 x 64 map of the weights");
  flag("--weights", o.weights, "The weights themselves");
}

}  // namespace

void add_explain_command(Command& program) {
  Command* verb =
      program.add_subcommand("explain", "Say which implementation a call would use here, and why not the others");
  auto options = std::make_shared<ExplainOptions>();
  verb->add_option("case", options->case_path, "Take the call from a file instead of the options")
      ->type_name("CASE.safetensors");
  add_dtype_option(*verb, options->dtype, "Element type of q, k, v (default: f32, or that of the file)");
  verb->add_flag("--backward", options->backward, "Ask about the backward pass");
  options->execution.add_to(*verb);
  add_shape_options(*verb, *options);
  add_feature_options(*verb, *options);
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options] { run_explain(*options); });
}

}  // namespace rootdk::tools
