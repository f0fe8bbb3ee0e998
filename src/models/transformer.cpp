#include "models/transformer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "core/check.h"
#include "layers/elementwise.h"
#include "layers/mixture.h"
#include "layers/stored_matrix.h"
#include "rootdk/dropout.h"

namespace rootdk {
namespace {

// Position of each token: its place in its own sequence, not counting padding before it, so that a padded sequence is
// computed as it would be alone.
std::vector<std::int32_t> token_positions(std::span<const std::int32_t> mask, std::int64_t batch, std::int64_t length) {
  std::vector<std::int32_t> positions;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::int64_t padding = 0;
    if (!mask.empty()) {
      const auto row = mask.subspan(static_cast<std::size_t>(b * length), static_cast<std::size_t>(length));
      while (padding < length && row[static_cast<std::size_t>(padding)] == 0) ++padding;
      if (padding == length) padding = 0;
    }
    for (std::int64_t i = 0; i < length; ++i) {
      positions.push_back(static_cast<std::int32_t>(std::max<std::int64_t>(0, i - padding)));
    }
  }
  return positions;
}

// Lengths where padding comes last in every sequence, else a bit a key; null without padding.
std::shared_ptr<const PaddingMask> padding_mask(std::span<const std::int32_t> mask, std::int64_t batch,
                                                std::int64_t length) {
  if (std::all_of(mask.begin(), mask.end(), [](std::int32_t bit) { return bit != 0; })) return nullptr;
  auto padding = std::make_shared<PaddingMask>();
  Tensor lengths(DType::i32, {batch});
  bool prefix = true;
  for (std::int64_t b = 0; b < batch; ++b) {
    const auto row = mask.subspan(static_cast<std::size_t>(b * length), static_cast<std::size_t>(length));
    const auto ones = std::count_if(row.begin(), row.end(), [](std::int32_t bit) { return bit != 0; });
    prefix = prefix && std::all_of(row.begin(), row.begin() + ones, [](std::int32_t bit) { return bit != 0; });
    lengths.values<std::int32_t>()[static_cast<std::size_t>(b)] = static_cast<std::int32_t>(ones);
  }
  if (prefix) {
    padding->kv_lengths = std::move(lengths);
    return padding;
  }
  padding->keep = Tensor(DType::boolean, {batch, 1, 1, length});
  std::transform(mask.begin(), mask.end(), padding->keep.values<bool>().begin(),
                 [](std::int32_t bit) { return bit != 0; });
  return padding;
}

std::int64_t sequence_length(std::span<const std::int32_t> ids, std::int64_t batch, const char* name) {
  const auto count = static_cast<std::int64_t>(ids.size());
  require(batch > 0 && count > 0 && count % batch == 0, "forward: ", count, " ", name, " for a batch of ", batch);
  return count / batch;
}

void require_same_count(std::size_t found, std::size_t expected, const char* name) {
  require(found == 0 || found == expected, "forward: ", name, " has ", found, " entries for ", expected, " ids");
}

// "dynamic" stretches the base only for sequences longer than the model was trained on.
RopeParams rope_params(const RopeConfig& rope, std::int64_t length) {
  RopeParams params = rope.params;
  if (rope.dynamic && length > rope.max_position) {
    params.scaling = RopeScaling::ntk;
    params.factor = rope.dynamic_factor * static_cast<double>(length) / static_cast<double>(rope.max_position) -
                    (rope.dynamic_factor - 1.0);
  }
  return params;
}

Value last_rows(Context& context, const Value& x, std::int64_t batch) {
  const std::int64_t length = x->rows() / batch;
  if (length == 1) return x;
  auto rows = std::make_shared<std::vector<std::int32_t>>();
  for (std::int64_t b = 0; b < batch; ++b) rows->push_back(static_cast<std::int32_t>((b + 1) * length - 1));
  return gather_rows(context, x, rows);
}

}  // namespace

// What a stack needs besides its input.
struct Transformer::StackCall {
  std::int64_t batch = 1;
  std::span<const std::int32_t> positions{};  // one a row
  std::int64_t total_length = 0;              // of the longest sequence, earlier tokens included
  std::shared_ptr<const PaddingMask> padding{};
  Value memory{};  // the encoder's output
  std::shared_ptr<const PaddingMask> memory_padding{};
  ModelCache* cache = nullptr;  // with a cache, x has the rows of these steps
  KvSteps steps{};
  ForwardOptions options{};
  StackKind kind = StackKind::main;
  std::vector<AttentionCapture>* captures = nullptr;
  std::vector<AttentionCapture>* cross_captures = nullptr;
};

Transformer::Stack::Stack(const StackConfig& config, std::int64_t d_model, std::int64_t embedding_width) {
  for (const BlockConfig& block : config.blocks) blocks.emplace_back(block);
  if (config.embedding_norm) embedding_norm = Norm(embedding_width, config.norm, config.norm_bias);
  if (config.final_norm) final_norm = Norm(d_model, config.norm, config.norm_bias);
  if (config.stored_positions > 0) positions = make_value({config.stored_positions, d_model});
  if (config.relative) {
    require(!config.blocks.empty(), "transformer: relative positions in a stack without layers");
    relative = make_value({config.relative->buckets, config.blocks.front().attention.heads});
  }
}

void Transformer::Stack::collect(Parameters& into, const std::string& name) const {
  embedding_norm.collect(into, name + ".embedding_norm");
  if (positions) into.push_back({name + ".positions.weight", positions});
  if (relative) into.push_back({name + ".relative.weight", relative});
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i].collect(into, name + ".layers." + std::to_string(i));
  final_norm.collect(into, name + ".final_norm");
}

Transformer::Transformer(TransformerConfig config) : config_(std::move(config)) {
  const std::int64_t d_model = config_.d_model;
  for (StackConfig* stack : {&config_.stack, config_.encoder ? &*config_.encoder : nullptr}) {
    if (!stack) continue;
    for (BlockConfig& block : stack->blocks) block.attention.memory = block.feed_forward.memory = config_.memory;
  }
  const std::int64_t width = config_.embedding_size > 0 ? config_.embedding_size : d_model;
  auto matrix = [&](std::int64_t rows) { return make_weight(rows, width, config_.memory); };
  embedding_ = matrix(config_.vocab_size);
  decoder_embedding_ = config_.separate_embeddings ? matrix(config_.decoder_vocab_size) : embedding_;
  if (config_.positions == PositionEncoding::learned) {
    positions_ = make_value({config_.max_position + config_.position_offset, width});
  }
  if (config_.token_types > 0) token_types_ = make_value({config_.token_types, width});
  if (config_.embedding_size > 0) embedding_projection_ = Linear(d_model, width, true, config_.memory);
  if (config_.encoder) encoder_.emplace(*config_.encoder, d_model, width);
  stack_ = Stack(config_.stack, d_model, width);
  if (config_.output == ModelOutput::logits) {
    head_ = config_.tied_head ? decoder_embedding_ : matrix(config_.decoder_vocab_size);
    if (config_.head_bias) head_bias_ = make_value({config_.decoder_vocab_size});
  }
}

Parameters Transformer::parameters() const {
  Parameters all{{"embedding.weight", embedding_}};
  if (config_.separate_embeddings) all.push_back({"decoder_embedding.weight", decoder_embedding_});
  if (positions_) all.push_back({"position.weight", positions_});
  if (token_types_) all.push_back({"token_type.weight", token_types_});
  if (embedding_projection_.weight) embedding_projection_.collect(all, "embedding_projection");
  if (encoder_) encoder_->collect(all, "encoder");
  stack_.collect(all, "stack");
  if (head_ && !config_.tied_head) all.push_back({"head.weight", head_});
  if (head_bias_) all.push_back({"head.bias", head_bias_});
  return all;
}

std::int64_t Transformer::parameter_count() const {
  std::int64_t count = 0;
  std::set<const void*> counted;  // layers may share what is stored
  for (const Parameter& parameter : parameters()) {
    const StoredMatrix* stored = parameter.value->stored();
    if (!stored || counted.insert(stored->matrix.data).second) count += parameter.value->elements();
  }
  return count;
}

Value Transformer::embed_tokens(Context& context, const Stack& stack, const Value& table,
                                std::span<const std::int32_t> ids, std::span<const std::int32_t> positions,
                                std::span<const std::int32_t> token_types) const {
  Value x = embed(context, ids, table);
  if (config_.embedding_scale != 1.0) x = scale(context, x, config_.embedding_scale);
  if (token_types_) {
    const std::vector<std::int32_t> zeros(ids.size());
    x = add(context, x,
            embed(context, token_types.empty() ? std::span<const std::int32_t>(zeros) : token_types, token_types_));
  }
  const std::int32_t last = *std::max_element(positions.begin(), positions.end());
  if (const Value& learned = stack.positions ? stack.positions : positions_) {
    const std::int64_t offset = config_.position_offset;
    require(last + offset < learned->rows(), "forward: ", last + 1, " tokens pass the ", learned->rows() - offset,
            " positions the model has learned");
    std::vector<std::int32_t> rows(positions.begin(), positions.end());
    for (std::int32_t& row : rows) row += static_cast<std::int32_t>(offset);
    x = add(context, x, embed(context, rows, learned));
  } else if (config_.positions == PositionEncoding::sinusoidal) {
    Value encodings = make_value({last + 1, config_.d_model});
    sinusoidal_positions(encodings->value(), {.layout = config_.sinusoidal});
    Context without_gradient{.executor = context.executor};
    x = add(context, x, embed(without_gradient, positions, encodings));
  }
  if (stack.embedding_norm) x = stack.embedding_norm(context, x);
  if (embedding_projection_.weight) x = embedding_projection_(context, x);
  return dropout(context, x);
}

Value Transformer::run(Context& context, const Stack& stack, const StackConfig& config, Value x,
                       StackCall& call) const {
  BlockInput input;
  input.self.batch = input.cross.batch = call.batch;
  input.self.padding = call.padding;
  input.cross.source = call.memory;
  input.cross.padding = call.memory_padding;
  std::shared_ptr<const RopeTable> rope, local_rope;
  if (config_.positions == PositionEncoding::rotary) {
    const std::int64_t head_dim = stack.blocks.front().attention.config().head_dim;
    rope = make_rope_table(head_dim, rope_params(config_.rope, call.total_length), call.positions);
    if (config_.local_rope) {
      local_rope = make_rope_table(head_dim, rope_params(*config_.local_rope, call.total_length), call.positions);
    }
  }
  if (stack.relative) {
    input.self.relative_table = t5_table(context, stack.relative, *config.relative);
    input.self.relative_zero = config.relative->max_distance;
  }
  const AttentionObserver* observer = call.options.observer;
  const bool watched = call.options.weights || call.options.stats || call.options.operands || observer;
  if (call.captures) call.captures->resize(stack.blocks.size());
  if (call.cross_captures) call.cross_captures->resize(stack.blocks.size());
  for (std::size_t layer = 0; layer < stack.blocks.size(); ++layer) {
    auto capture = [&](std::vector<AttentionCapture>* captures) -> AttentionCapture* {
      if (!watched || !captures) return nullptr;
      AttentionCapture& slot = (*captures)[layer];
      if (observer) {
        slot.want_profile = true;
        slot.map_side = observer->map_side;
        slot.sampled_rows = observer->sampled_rows;
        slot.want_operands = call.options.operands;
        return &slot;
      }
      slot.want_weights = call.options.weights;
      slot.want_stats = call.options.stats;
      slot.want_operands = call.options.operands;
      return &slot;
    };
    input.self.rope = local_rope && stack.blocks[layer].attention.config().local_rope ? local_rope : rope;
    input.self.capture = capture(call.captures);
    input.cross.capture = capture(call.cross_captures);
    std::vector<FixedKeys> fixed;
    if (call.cache) {
      input.self.cached = {.cache = &call.cache->keys, .layer = static_cast<std::int64_t>(layer), .steps = call.steps};
      fixed = call.cache->source_keys(call.steps, layer);
      input.cross.fixed = fixed;
      input.cross.steps = call.steps;
    }
    const Block& block = stack.blocks[layer];
    if (context.recompute && context.tape) {
      x = recomputed(context, [&block, x, input](Context& inside) mutable {
        Value y = block(inside, x, input);
        input.self.capture = input.cross.capture = nullptr;  // seen once
        return y;
      });
    } else {
      x = block(context, x, input);
    }
    if (!observer) continue;
    for (auto [capture, kind] : {std::pair(input.self.capture, call.kind), {input.cross.capture, StackKind::cross}}) {
      if (!capture) continue;
      observer->seen(kind, layer, *capture);
      *capture = {};
    }
  }
  return stack.final_norm ? stack.final_norm(context, x) : x;
}

Value Transformer::encode(Context& context, const ModelInput& input, const ForwardOptions& options, ModelResult& result,
                          std::shared_ptr<const PaddingMask>& padding) const {
  const std::int64_t length = sequence_length(input.ids, input.batch, "input ids");
  const std::vector<std::int32_t> positions = token_positions(input.mask, input.batch, length);
  padding = padding_mask(input.mask, input.batch, length);
  StackCall call{.batch = input.batch,
                 .positions = positions,
                 .total_length = length,
                 .padding = padding,
                 .options = options,
                 .kind = StackKind::encoder,
                 .captures = &result.encoder_attention};
  return run(context, *encoder_, *config_.encoder,
             embed_tokens(context, *encoder_, embedding_, input.ids, positions, input.token_types), call);
}

Value Transformer::head(Context& context, Value x) const {
  if (config_.output == ModelOutput::hidden_states) return x;
  if (config_.head_scale != 1.0) x = scale(context, x, config_.head_scale);
  x = linear(context, x, head_, head_bias_);
  return config_.head_softcap > 0 ? softcap(context, x, config_.head_softcap) : x;
}

// Takes back what a call that throws has given to a cache, so that it can be tried again.
class Transformer::ExtendGuard {
 public:
  ExtendGuard(KvCache& keys, KvSteps steps) : keys_(&keys), steps_(steps) {
    for (const KvStep& step : steps) lengths_.push_back(keys.length(step.sequence));
  }
  ~ExtendGuard() {
    if (!keys_) return;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (keys_->length(steps_[i].sequence) > lengths_[i]) keys_->trim(steps_[i].sequence, lengths_[i]);
    }
  }
  ExtendGuard(const ExtendGuard&) = delete;
  ExtendGuard& operator=(const ExtendGuard&) = delete;
  void commit() { keys_ = nullptr; }

 private:
  KvCache* keys_;
  KvSteps steps_;
  std::vector<std::int64_t> lengths_;
};

ModelResult Transformer::forward(Context& context, const ModelInput& input, const ForwardOptions& options) const {
  require_same_count(input.mask.size(), input.ids.size(), "attention_mask");
  require_same_count(input.token_types.size(), input.ids.size(), "token_type_ids");
  ModelResult result;
  StackCall call{.batch = input.batch, .options = options, .captures = &result.attention};
  const bool both = config_.encoder.has_value();
  const std::vector<std::int32_t>& ids = both ? input.decoder_ids : input.ids;
  call.total_length = sequence_length(ids, input.batch, both ? "decoder ids" : "input ids");
  if (both) {
    call.memory = encode(context, input, options, result, call.memory_padding);
    call.cross_captures = &result.cross_attention;
  }
  const std::span<const std::int32_t> mask = both ? std::span<const std::int32_t>() : input.mask;
  const std::vector<std::int32_t> positions = token_positions(mask, input.batch, call.total_length);
  call.positions = positions;
  call.padding = padding_mask(mask, input.batch, call.total_length);
  Value x = embed_tokens(context, stack_, decoder_embedding_, ids, positions,
                         both ? std::span<const std::int32_t>() : input.token_types);
  x = run(context, stack_, config_.stack, x, call);
  result.output = head(context, options.last_only ? last_rows(context, x, input.batch) : x);
  return result;
}

ModelCache Transformer::make_cache(const CacheOptions& options) const {
  require(!stack_.blocks.empty(), "cache: the model has no layers");
  const MultiHeadConfig& attention = stack_.blocks.front().attention.config();
  constexpr std::int64_t kPageSize = 64;
  return {.keys = KvCache({.dtype = options.dtype.value_or(config_.stored_type),
                           .layers = static_cast<std::int64_t>(stack_.blocks.size()),
                           .kv_heads = attention.kv_heads,
                           .head_dim = attention.head_dim,
                           .value_dim = attention.value_dim,
                           .page_size = kPageSize,
                           .pages = std::max<std::int64_t>(1, (options.tokens + kPageSize - 1) / kPageSize)})};
}

SequenceId Transformer::open_sequence(Context& context, ModelCache& cache, std::span<const std::int32_t> source) const {
  require(encoder_.has_value() == !source.empty(), "open_sequence: ", config_.architecture,
          encoder_ ? " needs the ids of a source" : " has no encoder for a source");
  if (!encoder_) return cache.keys.open();
  ModelResult ignored;
  std::shared_ptr<const PaddingMask> padding;
  const Value memory = encode(context, {.ids = {source.begin(), source.end()}}, {}, ignored, padding);
  std::vector<FixedKeys> keys;
  for (const Block& block : stack_.blocks) keys.push_back(block.cross.fixed_keys(context, memory));
  return cache.open(std::move(keys));
}

Value Transformer::extend(Context& context, ModelCache& cache, std::span<const std::int32_t> ids, KvSteps steps,
                          ExtendOutput output) const {
  std::vector<std::int32_t> positions;
  auto last = std::make_shared<std::vector<std::int32_t>>();
  StackCall call{.cache = &cache, .steps = steps};
  for (const KvStep& step : steps) {
    require(step.tokens > 0, "extend: a step of ", step.tokens, " tokens");
    const std::int64_t length = cache.keys.length(step.sequence);
    call.total_length = std::max(call.total_length, length + step.tokens);
    for (std::int64_t i = 0; i < step.tokens; ++i) positions.push_back(static_cast<std::int32_t>(length + i));
    last->push_back(static_cast<std::int32_t>(positions.size() - 1));
  }
  require(!steps.empty() && positions.size() == ids.size(), "extend: ", ids.size(), " ids for steps of ",
          positions.size(), " tokens");
  require(!config_.rope.dynamic || call.total_length <= config_.rope.max_position,
          "extend: dynamic RoPE rotates every key anew past ", config_.rope.max_position,
          " tokens, so that a cache does not serve ", call.total_length);
  cache.make_room(steps);
  ExtendGuard guard(cache.keys, steps);
  call.positions = positions;
  const Value x =
      run(context, stack_, config_.stack, embed_tokens(context, stack_, decoder_embedding_, ids, positions, {}), call);
  const bool all = output == ExtendOutput::all_tokens || last->size() == positions.size();
  const Value result = head(context, all ? x : gather_rows(context, x, last));
  guard.commit();
  return result;
}

void initialize(Transformer& model, std::uint64_t seed) {
  const double layers = static_cast<double>(model.blocks().size());
  const double embedding_scale = model.config().embedding_scale;
  std::uint32_t tensor = 0;
  for (const Parameter& parameter : model.parameters()) {
    ++tensor;
    if (parameter.value->value().rank() < 2) continue;  // norms and biases stay as they are
    const bool output =
        parameter.name.find("o_proj") != std::string::npos || parameter.name.find("down_proj") != std::string::npos;
    double deviation = output ? 0.02 / std::sqrt(2.0 * layers) : 0.02;
    if (parameter.name == "embedding.weight" && embedding_scale != 1.0) deviation = 1.0 / embedding_scale;
    std::span<float> weights = parameter.value->value().values<float>();
    for (std::size_t i = 0; i < weights.size(); ++i) {  // Box-Muller on words that depend on (seed, tensor, i) alone
      const PhiloxWords words = philox4x32_10({static_cast<std::uint32_t>(i), tensor, 0u, 1u}, seed);
      const double radius = std::sqrt(-2.0 * std::log((words[0] + 1.0) * 0x1p-32));
      weights[i] = static_cast<float>(deviation * radius * std::cos(2.0 * M_PI * words[1] * 0x1p-32));
    }
  }
}

}  // namespace rootdk
