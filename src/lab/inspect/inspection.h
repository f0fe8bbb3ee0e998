#pragma once

// What the heads of a checkpoint do on a text: one forward pass, every layer watched through the statistics that the
// kernels report. Memory grows with the length, never with its square.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lab/inspect/head_label.h"
#include "lab/inspect/head_operands.h"
#include "models/loaded_model.h"

namespace rootdk::lab {

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
  double sink_chance = 0;     // what uniform attention would put there

  // From the exact weights of `sampled_rows` evenly spaced rows (all rows of a short text), those that see too few keys
  // to tell left out. NaN where the question does not arise: distances in cross-attention, induction without a repeated
  // token.
  std::int64_t sampled_rows = 0;
  double mean_distance = 0;  // sum p |i - j|
  LabelScores scores{};      // of every label, whether it is given or not
  LabelScore label{};        // the one that is given, or mixed

  double score(HeadLabel of) const { return scores[static_cast<std::size_t>(of)].score; }

  std::vector<float> column_mass{};    // [keys]: the weight that each key receives, summed over rows
  std::vector<float> column_chance{};  // [keys]: what it would receive from uniform attention over the same mask
  // [map_rows, map_columns]: the weights themselves where they fit, else pooled: the mean over a cell's rows of the
  // weight summed over its keys.
  std::int64_t map_rows = 0, map_columns = 0;
  std::vector<float> map{};
  std::shared_ptr<const HeadOperands> operands{};  // null: not asked for, or no room
};

struct InspectOptions {
  std::vector<std::int64_t> layers{}, heads{};  // only these; empty: all
  std::int64_t map_side = 64;                   // of the maps; texts that are no longer show every weight
  // Keeps q, k and v of heads, so many numbers in all, the clearest labels first. 0: none. Only where the text has at
  // most kOperandTokens tokens and the score is q · k.
  std::int64_t operand_numbers = 0;
  Executor* executor = nullptr;
};

struct Inspection {
  std::string model{}, architecture{};
  std::int64_t parameters = 0;
  std::vector<std::int32_t> ids{};          // what the decoder or the only stack read
  std::vector<std::int32_t> encoder_ids{};  // encoder-decoder models
  std::vector<std::string> tokens{}, encoder_tokens{};
  std::vector<HeadProfile> heads{};     // by stack, layer, head
  std::int64_t trained_context = 0;     // tokens the model was trained on at a time; 0: its config does not say
  std::vector<std::string> warnings{};  // what keeps the numbers from meaning what they seem to

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

// What a page has room for: `share` of it where several inspections share one. Sets map_side and operand_numbers.
InspectOptions for_page(InspectOptions options, const LoadedModel& subject, std::size_t tokens, double share = 1);

// Heads grouped by label, in each group the clearest first. Indices into inspection.heads.
std::vector<std::size_t> sorted_by_label(const Inspection& inspection);

// The heads of two inspections that stand for the same stack, layer and head; an index into the heads of each side, or
// none where that side has no such head. First the heads of the first side, as sorted_by_label has them, then those
// that only the second has.
using PairedHeads = std::array<std::optional<std::size_t>, 2>;
std::vector<PairedHeads> paired_heads(std::span<const Inspection> sides);

std::string_view name_of(StackKind stack);

}  // namespace rootdk::lab
