#pragma once

// What the heads of a checkpoint do on a text: one forward pass, every layer watched through the statistics that the
// kernels report. Memory grows with the length, never with its square.

#include <cstdint>
#include <string>
#include <vector>

#include "models/loaded_model.h"

namespace rootdk::lab {

// What a head mostly does. head_label.h has the rules.
enum class HeadLabel { previous_token, first_token, same_token, induction, broad, local, mixed };

// One head of one layer. Means over all rows unless said otherwise; rows are queries.
struct HeadProfile {
  StackKind stack = StackKind::main;
  std::int64_t layer = 0, head = 0;
  std::int64_t rows = 0, keys = 0;

  double entropy = 0;         // nats
  double effective_keys = 0;  // exp(entropy), the mean over rows
  double max_logit = 0;       // the largest of all rows
  double saturation = 0;      // share of rows with a weight over 0.9
  double gradient_left = 0;   // 1 - sum p^2
  double sink_mass = 0;       // weight on key 0

  // From the exact weights of `sampled_rows` evenly spaced rows (all rows of a short text), those that see too few keys
  // to tell left out. NaN where the question does not arise: distances in cross-attention, induction without a repeated
  // token.
  std::int64_t sampled_rows = 0;
  double mean_distance = 0;  // sum p |i - j|
  double previous = 0;       // weight on the token before
  double first = 0;          // weight on the first token
  double same = 0;           // weight on equal tokens, the row's own among them
  double induction = 0;      // weight on tokens that followed an earlier occurrence of the row's token
  double near = 0;           // weight on the kNearTokens tokens up to the row's own (on both sides without a mask)
  double used = 0;           // effective keys over visible keys

  HeadLabel label = HeadLabel::mixed;
  double strength = 0;  // the number that the label's rule looked at

  std::vector<float> column_mass{};  // [keys]: the weight that each key receives, summed over rows
  // [map_rows, map_columns]: the weights themselves where they fit, else pooled: the mean over a cell's rows of the
  // weight summed over its keys.
  std::int64_t map_rows = 0, map_columns = 0;
  std::vector<float> map{};
};

struct InspectOptions {
  std::vector<std::int64_t> layers{}, heads{};  // only these; empty: all
  std::int64_t map_side = 64;                   // of the maps; texts that are no longer show every weight
  Executor* executor = nullptr;
};

struct Inspection {
  std::string model{}, architecture{};
  std::int64_t parameters = 0;
  std::vector<std::int32_t> ids{};          // what the decoder or the only stack read
  std::vector<std::int32_t> encoder_ids{};  // encoder-decoder models
  std::vector<std::string> tokens{}, encoder_tokens{};
  std::vector<HeadProfile> heads{};  // by stack, layer, head

  const std::vector<std::string>& key_tokens(const HeadProfile& head) const {
    return head.stack == StackKind::main ? tokens : encoder_tokens;
  }
  const std::vector<std::string>& query_tokens(const HeadProfile& head) const {
    return head.stack == StackKind::encoder ? encoder_tokens : tokens;
  }
};

// An encoder-decoder model reads ids in its encoder; its decoder reads what it answers greedily (32 tokens at most).
Inspection inspect(const LoadedModel& subject, const std::vector<std::int32_t>& ids,
                   const InspectOptions& options = {});

// Heads grouped by label, in each group the clearest first. Indices into inspection.heads.
std::vector<std::size_t> sorted_by_label(const Inspection& inspection);

std::string_view name_of(StackKind stack);

}  // namespace rootdk::lab
