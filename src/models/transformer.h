#pragma once

// The one transformer: decoder, encoder or both, as its config says.

#include <functional>
#include <span>

#include "models/config.h"
#include "models/model_cache.h"

namespace rootdk {

// Token ids of a batch, row by row. Masks are 1 for tokens and 0 for padding, or empty: no padding.
struct ModelInput {
  std::int64_t batch = 1;
  std::vector<std::int32_t> ids{};  // [batch, len]
  std::vector<std::int32_t> mask{};
  std::vector<std::int32_t> token_types{};  // [batch, len]; empty: all 0
  std::vector<std::int32_t> decoder_ids{};  // [batch, decoder_len]: encoder-decoder models
};

// Which attention of a model: of the decoder or the only stack, of the encoder, or from decoder to encoder.
enum class StackKind : std::int32_t { main = 0, encoder = 1, cross = 2 };

// Watches a forward pass layer by layer. What a layer filled is dropped once it was seen, so that a long text needs the
// memory of one layer.
struct AttentionObserver {
  std::int64_t map_side = 64, sampled_rows = 64;  // of AttentionCapture, whose profile each layer fills
  std::function<void(StackKind, std::size_t layer, const AttentionCapture&)> seen{};
};

struct ForwardOptions {
  bool weights = false;                         // capture each layer's attention weights
  bool stats = false;                           // capture each layer's max logit and entropy
  bool operands = false;                        // capture each layer's q, k and v
  bool last_only = false;                       // the output of each sequence's last token alone
  const AttentionObserver* observer = nullptr;  // sees each layer as it comes; ModelResult then keeps no captures
};

struct ModelResult {
  Value output;                             // [batch len, vocab_size] logits, or [batch len, d_model] hidden states
  std::vector<AttentionCapture> attention;  // of the decoder or the only stack, one a layer
  std::vector<AttentionCapture> encoder_attention, cross_attention;
};

class Transformer {
 public:
  // Parameters are zero, norms at identity: load_model() or initialize() fills them.
  explicit Transformer(TransformerConfig config);

  const TransformerConfig& config() const { return config_; }
  Parameters parameters() const;
  std::int64_t parameter_count() const;

  ModelResult forward(Context& context, const ModelInput& input, const ForwardOptions& options = {}) const;

  // Sequences that grow token by token (models/model_cache.h). extend() appends new tokens to sequences: ids
  // holds those of the first step, then of the next. It returns the output of each step's last token, or of all tokens.
  // What a token gives has the same bits whatever other steps are in the call. A call that throws leaves the cache as
  // it was.
  ModelCache make_cache(const CacheOptions& options = {}) const;
  // An empty sequence; `source` has the ids that an encoder-decoder model's encoder gets.
  SequenceId open_sequence(Context& context, ModelCache& cache, std::span<const std::int32_t> source = {}) const;
  Value extend(Context& context, ModelCache& cache, std::span<const std::int32_t> ids, KvSteps steps,
               ExtendOutput output = ExtendOutput::last_token) const;

  // The blocks of the decoder or the only stack, for training's QK-clip.
  std::span<Block> blocks() { return stack_.blocks; }

 private:
  struct Stack {
    std::vector<Block> blocks;
    Norm embedding_norm, final_norm;
    Value relative;   // [buckets, heads]
    Value positions;  // [max_position, d_model], where the checkpoint stores it

    Stack() = default;
    Stack(const StackConfig& config, std::int64_t d_model, std::int64_t embedding_width);
    void collect(Parameters& into, const std::string& name) const;
  };
  struct StackCall;
  class ExtendGuard;

  Value embed_tokens(Context& context, const Stack& stack, const Value& table, std::span<const std::int32_t> ids,
                     std::span<const std::int32_t> positions, std::span<const std::int32_t> token_types) const;
  Value run(Context& context, const Stack& stack, const StackConfig& config, Value x, StackCall& call) const;
  Value encode(Context& context, const ModelInput& input, const ForwardOptions& options, ModelResult& result,
               std::shared_ptr<const PaddingMask>& padding) const;
  Value head(Context& context, Value x) const;

  TransformerConfig config_;
  Value embedding_;          // [vocab, d_model]
  Value decoder_embedding_;  // where it is separate, else the same
  Value positions_, token_types_;
  Linear embedding_projection_;  // null weight where embeddings have the width of the model
  std::optional<Stack> encoder_;
  Stack stack_;
  Value head_, head_bias_;
};

// Normal weights with deviation 0.02 (output projections: over sqrt(2 layers); embeddings that are scaled: one over the
// scale), zero biases, norms at identity.
void initialize(Transformer& model, std::uint64_t seed);

}  // namespace rootdk
