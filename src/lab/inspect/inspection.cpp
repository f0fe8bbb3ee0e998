#include "lab/inspect/inspection.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/check.h"
#include "models/generate.h"

namespace rootdk::lab {
namespace {

// What one layer's heads looked at, besides the capture.
struct LayerView {
  StackKind stack;
  std::int64_t layer;
  const MultiHeadConfig& config;
  std::span<const std::int32_t> query_ids, key_ids;

  VisibleKeys visible(std::int64_t i) const {
    const auto keys = static_cast<std::int64_t>(key_ids.size());
    if (stack == StackKind::cross) return {0, keys - 1};
    const std::int64_t first = config.window_left >= 0 ? std::max<std::int64_t>(0, i - config.window_left) : 0;
    return {first, config.causal ? i : keys - 1};
  }
};

std::span<const float> row_of(const Tensor& rows, std::int64_t head) {  // of [1, heads, width]
  return rows.values<float>().subspan(static_cast<std::size_t>(head * rows.size(2)),
                                      static_cast<std::size_t>(rows.size(2)));
}

double mean_of(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Rows that see so few keys that any head would look like any label are left out.
std::int64_t enough_keys(const LayerView& view) {
  const auto last = static_cast<std::int64_t>(view.query_ids.size()) - 1;
  return std::min(kEnoughKeys, (view.visible(last).count() + 1) / 2);
}

// What every key would receive from uniform attention: the sum over rows of 1 / visible keys.
std::vector<float> uniform_mass(const LayerView& view) {
  std::vector<double> change(view.key_ids.size() + 1);  // from one key to the next
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(view.query_ids.size()); ++i) {
    const VisibleKeys visible = view.visible(i);
    const double share = 1 / static_cast<double>(visible.count());
    change[static_cast<std::size_t>(visible.first)] += share;
    change[static_cast<std::size_t>(visible.last + 1)] -= share;
  }
  std::vector<float> mass;
  double sum = 0;
  for (std::size_t j = 0; j < view.key_ids.size(); ++j) mass.push_back(static_cast<float>(sum += change[j]));
  return mass;
}

void fill_row_statistics(HeadProfile& head, const AttentionCapture& capture, const LayerView& view) {
  const auto entropy = row_of(capture.entropy, head.head), top = row_of(capture.max_weight, head.head);
  const auto rows = static_cast<double>(head.rows);
  head.entropy = mean_of(entropy);
  head.gradient_left = 1 - mean_of(row_of(capture.sum_p2, head.head));
  head.max_logit = *std::ranges::max_element(row_of(capture.max_logit, head.head));
  head.saturation =
      static_cast<double>(std::ranges::count_if(top, [](float w) { return w > kSaturatedWeight; })) / rows;
  for (float e : entropy) head.effective_keys += std::exp(double{e}) / rows;
  const auto mass = row_of(capture.column_mass, head.head);
  head.column_mass.assign(mass.begin(), mass.end());
  head.column_chance = uniform_mass(view);
  head.sink_mass = double{mass[0]} / rows;
  head.sink_chance = double{head.column_chance[0]} / rows;
}

void fill_label(HeadProfile& head, const AttentionCapture& capture, const LayerView& view, std::int64_t model_heads) {
  HeadRows rows(view.query_ids, view.key_ids, view.stack == StackKind::cross);
  const std::int64_t enough = enough_keys(view), sampled = capture.weights.size(2);
  head.sampled_rows = sampled;
  for (std::int64_t r = 0; r < sampled; ++r) {
    const std::int64_t i = capture.weight_rows.values<std::int32_t>()[static_cast<std::size_t>(r)];
    if (view.visible(i).count() < enough) continue;
    rows.add_weights(
        i, view.visible(i),
        capture.weights.values<float>().subspan(static_cast<std::size_t>((head.head * sampled + r) * head.keys),
                                                static_cast<std::size_t>(head.keys)));
  }
  const auto entropy = row_of(capture.entropy, head.head);
  for (std::int64_t i = 0; i < head.rows; ++i) {
    if (view.visible(i).count() >= enough)
      rows.add_entropy(i, view.visible(i), double{entropy[static_cast<std::size_t>(i)]});
  }
  head.mean_distance = rows.mean_distance();
  head.scores = rows.scores(model_heads);
  head.label = chosen_label(head.scores);
}

void fill_map(HeadProfile& head, const AttentionCapture& capture) {
  head.map_rows = capture.pooled_map.size(2);
  head.map_columns = capture.pooled_map.size(3);
  const auto cells = static_cast<std::size_t>(head.map_rows * head.map_columns);
  const auto map = capture.pooled_map.values<float>().subspan(static_cast<std::size_t>(head.head) * cells, cells);
  head.map.assign(map.begin(), map.end());
}

// Where a page has no room for the operands of all heads, those of the least clear ones go. k and v are shared.
void keep_clearest_operands(Inspection& inspection, std::int64_t numbers) {
  std::int64_t kept = 0;
  std::set<const void*> counted;
  for (const std::size_t index : sorted_by_label(inspection)) {
    HeadProfile& head = inspection.heads[index];
    if (!head.operands) continue;
    std::size_t more = head.operands->q.size();
    for (const auto& shared : {head.operands->k, head.operands->v}) {
      if (!counted.contains(shared.get())) more += shared->size();
    }
    if (kept + static_cast<std::int64_t>(more) > numbers) {
      head.operands = nullptr;
      continue;
    }
    kept += static_cast<std::int64_t>(more);
    counted.insert({head.operands->k.get(), head.operands->v.get()});
  }
}

bool wanted(const std::vector<std::int64_t>& chosen, std::int64_t index) {
  return chosen.empty() || std::ranges::find(chosen, index) != chosen.end();
}

// So many rows that the exact weights of a layer stay below 64 MB, but never fewer than 32.
std::int64_t rows_to_sample(std::int64_t keys, std::int64_t heads) {
  constexpr std::int64_t kShortText = 512, kMostWeights = std::int64_t{1} << 24;
  return keys <= kShortText ? kShortText : std::clamp<std::int64_t>(kMostWeights / (keys * heads), 32, 256);
}

void require_known(const std::vector<std::int64_t>& chosen, std::int64_t count, const char* what) {
  for (std::int64_t index : chosen) {
    require(index >= 0 && index < count, "inspect: there is no ", what, ' ', index, "; there are 0 to ", count - 1);
  }
}

// All heads of a model: what a label is corrected for.
std::int64_t heads_of(const TransformerConfig& config) {
  std::int64_t heads = 0;
  for (const BlockConfig& block : config.stack.blocks) heads += block.attention.heads * (config.encoder ? 2 : 1);
  if (config.encoder) {
    for (const BlockConfig& block : config.encoder->blocks) heads += block.attention.heads;
  }
  return heads;
}

std::vector<std::string> warnings_of(const TransformerConfig& config, std::int64_t tokens) {
  if (config.trained_context == 0 || tokens <= config.trained_context) return {};
  return {"the text has " + std::to_string(tokens) + " tokens, and the model was trained on " +
          std::to_string(config.trained_context) +
          " at a time: beyond that its heads do what training never asked of them"};
}

}  // namespace

std::string_view name_of(StackKind stack) {
  switch (stack) {
    case StackKind::main: return "self";
    case StackKind::encoder: return "encoder";
    case StackKind::cross: return "cross";
  }
  return "unknown";
}

Inspection inspect(const LoadedModel& subject, const std::vector<std::int32_t>& ids, const InspectOptions& options) {
  require(!ids.empty(), "inspect: the text has no tokens");
  const TransformerConfig& config = subject.model.config();
  Inspection result{
      .model = subject.name, .architecture = config.architecture, .parameters = subject.model.parameter_count()};
  ModelInput input{.ids = ids};
  result.ids = ids;
  if (config.encoder) {
    result.encoder_ids = ids;
    result.ids = generate(subject.model, ids, {.max_new = 32, .executor = options.executor}).ids;
    input.decoder_ids = result.ids;
    result.encoder_tokens = subject.texts_of(ids);
  }
  result.tokens = subject.texts_of(result.ids);
  const auto& first_block = config.stack.blocks.at(0).attention;
  const std::size_t layers =
      std::max(config.stack.blocks.size(), config.encoder ? config.encoder->blocks.size() : std::size_t{0});
  require_known(options.layers, static_cast<std::int64_t>(layers), "layer");
  require_known(options.heads, first_block.heads, "head");

  const std::int64_t model_heads = heads_of(config);
  result.trained_context = config.trained_context;
  result.warnings = warnings_of(config, static_cast<std::int64_t>(std::max(ids.size(), result.ids.size())));

  AttentionObserver observer;
  observer.map_side = options.map_side;
  observer.sampled_rows =
      rows_to_sample(static_cast<std::int64_t>(std::max(ids.size(), result.ids.size())), first_block.heads);
  observer.seen = [&](StackKind stack, std::size_t layer, const AttentionCapture& capture) {
    if (!wanted(options.layers, static_cast<std::int64_t>(layer))) return;
    const std::vector<BlockConfig>& blocks = stack == StackKind::encoder ? config.encoder->blocks : config.stack.blocks;
    const LayerView view{.stack = stack,
                         .layer = static_cast<std::int64_t>(layer),
                         .config = blocks[layer].attention,
                         .query_ids = stack == StackKind::encoder ? result.encoder_ids : result.ids,
                         .key_ids = stack == StackKind::main ? result.ids : result.encoder_ids};
    LayerOperands operands(capture, view.config, stack == StackKind::cross);
    for (std::int64_t h = 0; h < capture.entropy.size(1); ++h) {
      if (!wanted(options.heads, h)) continue;
      HeadProfile head{.stack = stack,
                       .layer = view.layer,
                       .head = h,
                       .rows = capture.entropy.size(2),
                       .keys = capture.column_mass.size(2)};
      fill_row_statistics(head, capture, view);
      fill_label(head, capture, view, model_heads);
      fill_map(head, capture);
      head.operands = operands.of(h);
      result.heads.push_back(std::move(head));
    }
    if (options.operand_numbers > 0) keep_clearest_operands(result, options.operand_numbers);
  };
  Context context{.executor = options.executor};
  const bool operands =
      options.operand_numbers > 0 && std::max(ids.size(), result.ids.size()) <= std::size_t{kOperandTokens};
  subject.model.forward(context, input, {.operands = operands, .last_only = true, .observer = &observer});
  std::ranges::stable_sort(result.heads, {}, [](const HeadProfile& h) { return std::tuple(h.stack, h.layer, h.head); });
  return result;
}

InspectOptions for_page(InspectOptions options, const LoadedModel& subject, std::size_t tokens, double share) {
  // As base64: 8 MB of maps and 8 MB of operands.
  constexpr double kMapNumbers = 1.5e6, kOperandNumbers = 1.5e6;
  constexpr std::int64_t kLongestNamed = 256, kFewestCells = 16, kMostCells = 64;
  const TransformerConfig& config = subject.model.config();
  std::int64_t heads = heads_of(config);
  if (!options.layers.empty()) {
    heads = heads * static_cast<std::int64_t>(options.layers.size()) /
            static_cast<std::int64_t>(config.stack.blocks.size());
  }
  if (!options.heads.empty()) {
    heads = heads * static_cast<std::int64_t>(options.heads.size()) / config.stack.blocks.at(0).attention.heads;
  }
  const auto side =
      static_cast<std::int64_t>(std::sqrt(kMapNumbers * share / static_cast<double>(std::max<std::int64_t>(1, heads))));
  const bool exact = static_cast<std::int64_t>(tokens) <= std::min(side, kLongestNamed);
  options.map_side = exact ? kLongestNamed : std::clamp(side, kFewestCells, kMostCells);
  options.operand_numbers = static_cast<std::int64_t>(kOperandNumbers * share);
  return options;
}

std::vector<std::size_t> sorted_by_label(const Inspection& inspection) {
  std::vector<std::size_t> order(inspection.heads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    const HeadProfile& head = inspection.heads[i];
    return std::pair(head.label.label, -head.label.score);
  });
  return order;
}

std::vector<PairedHeads> paired_heads(std::span<const Inspection> sides) {
  require(sides.size() == 1 || sides.size() == 2, "paired_heads: ", sides.size(), " sides, expected 1 or 2");
  std::vector<PairedHeads> pairs;
  for (std::size_t index : sorted_by_label(sides[0])) pairs.push_back({index, std::nullopt});
  if (sides.size() == 1) return pairs;
  const auto name = [](const HeadProfile& head) { return std::tuple(head.stack, head.layer, head.head); };
  for (std::size_t index : sorted_by_label(sides[1])) {
    const auto pair = std::ranges::find_if(pairs, [&](const PairedHeads& p) {
      return p[0] && name(sides[0].heads[*p[0]]) == name(sides[1].heads[index]);
    });
    if (pair != pairs.end()) {
      (*pair)[1] = index;
    } else {
      pairs.push_back({std::nullopt, index});
    }
  }
  return pairs;
}

}  // namespace rootdk::lab
