#include "lab/inspect/inspection.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/check.h"
#include "lab/inspect/head_label.h"
#include "models/generate.h"

namespace rootdk::lab {
namespace {

// What one layer's heads looked at, besides the capture.
struct LayerView {
  StackKind stack;
  std::int64_t layer;
  const MultiHeadConfig& config;
  std::span<const std::int32_t> query_ids, key_ids;

  // Keys [first, last] that row i may see.
  std::pair<std::int64_t, std::int64_t> visible(std::int64_t i) const {
    const auto keys = static_cast<std::int64_t>(key_ids.size());
    if (stack == StackKind::cross) return {0, keys - 1};
    const std::int64_t first = config.window_left >= 0 ? std::max<std::int64_t>(0, i - config.window_left) : 0;
    return {first, config.causal ? i : keys - 1};
  }
  std::int64_t visible_count(std::int64_t i) const {
    const auto [first, last] = visible(i);
    return last - first + 1;
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
  return std::min(kEnoughKeys, (view.visible_count(last) + 1) / 2);
}

void fill_row_statistics(HeadProfile& head, const AttentionCapture& capture, const LayerView& view) {
  const auto entropy = row_of(capture.entropy, head.head), top = row_of(capture.max_weight, head.head);
  const auto rows = static_cast<double>(head.rows);
  head.entropy = mean_of(entropy);
  head.gradient_left = 1 - mean_of(row_of(capture.sum_p2, head.head));
  head.max_logit = *std::ranges::max_element(row_of(capture.max_logit, head.head));
  head.saturation =
      static_cast<double>(std::ranges::count_if(top, [](float w) { return w > kSaturatedWeight; })) / rows;
  double used = 0;
  std::int64_t counted = 0;
  for (std::int64_t i = 0; i < head.rows; ++i) {
    const double effective = std::exp(double{entropy[static_cast<std::size_t>(i)]});
    head.effective_keys += effective / rows;
    if (view.visible_count(i) < enough_keys(view)) continue;
    used += effective / static_cast<double>(view.visible_count(i));
    ++counted;
  }
  head.used = used / static_cast<double>(counted);
  const auto mass = row_of(capture.column_mass, head.head);
  head.column_mass.assign(mass.begin(), mass.end());
  head.sink_mass = double{mass[0]} / rows;
}

// The shares of one row of exact weights.
struct RowShares {
  double distance = 0, previous = 0, same = 0, induction = 0, near = 0;
  bool repeated = false;  // the row's token occurred before, with something behind it
};

RowShares shares_of(std::span<const float> weights, std::int64_t i, const LayerView& view) {
  RowShares shares;
  const auto [first, last] = view.visible(i);
  const std::int32_t token = view.query_ids[static_cast<std::size_t>(i)];
  for (std::int64_t j = first; j <= last; ++j) {
    const double weight = weights[static_cast<std::size_t>(j)];
    const auto distance = static_cast<double>(std::abs(i - j));
    shares.distance += weight * distance;
    if (j == i - 1) shares.previous += weight;
    if (distance <= kNearTokens) shares.near += weight;
    if (view.key_ids[static_cast<std::size_t>(j)] == token) shares.same += weight;
    if (j > 0 && j < i && view.key_ids[static_cast<std::size_t>(j - 1)] == token) {
      shares.induction += weight;
      shares.repeated = true;
    }
  }
  return shares;
}

void fill_shares(HeadProfile& head, const AttentionCapture& capture, const LayerView& view) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const std::int64_t sampled = capture.weights.size(2);
  head.sampled_rows = sampled;
  std::int64_t counted = 0, repeated = 0;
  for (std::int64_t r = 0; r < sampled; ++r) {
    const std::int64_t i = capture.weight_rows.values<std::int32_t>()[static_cast<std::size_t>(r)];
    if (view.visible_count(i) < enough_keys(view)) continue;
    const auto weights = capture.weights.values<float>().subspan(
        static_cast<std::size_t>((head.head * sampled + r) * head.keys), static_cast<std::size_t>(head.keys));
    ++counted;
    head.first += weights[0];
    if (view.stack == StackKind::cross) continue;
    const RowShares shares = shares_of(weights, i, view);
    head.mean_distance += shares.distance;
    head.previous += shares.previous;
    head.same += shares.same;
    head.near += shares.near;
    head.induction += shares.induction;
    repeated += shares.repeated;
  }
  const bool distances = view.stack != StackKind::cross;
  for (double* share : {&head.mean_distance, &head.previous, &head.same, &head.near})
    *share = distances ? *share / static_cast<double>(counted) : none;
  head.first /= static_cast<double>(counted);
  head.induction = repeated > 0 ? head.induction / static_cast<double>(repeated) : none;
}

void fill_map(HeadProfile& head, const AttentionCapture& capture) {
  head.map_rows = capture.pooled_map.size(2);
  head.map_columns = capture.pooled_map.size(3);
  const auto cells = static_cast<std::size_t>(head.map_rows * head.map_columns);
  const auto map = capture.pooled_map.values<float>().subspan(static_cast<std::size_t>(head.head) * cells, cells);
  head.map.assign(map.begin(), map.end());
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
    for (std::int64_t h = 0; h < capture.entropy.size(1); ++h) {
      if (!wanted(options.heads, h)) continue;
      HeadProfile head{.stack = stack,
                       .layer = view.layer,
                       .head = h,
                       .rows = capture.entropy.size(2),
                       .keys = capture.column_mass.size(2)};
      fill_row_statistics(head, capture, view);
      fill_shares(head, capture, view);
      fill_map(head, capture);
      label_head(head);
      result.heads.push_back(std::move(head));
    }
  };
  Context context{.executor = options.executor};
  subject.model.forward(context, input, {.last_only = true, .observer = &observer});
  std::ranges::stable_sort(result.heads, {}, [](const HeadProfile& h) { return std::tuple(h.stack, h.layer, h.head); });
  return result;
}

std::vector<std::size_t> sorted_by_label(const Inspection& inspection) {
  std::vector<std::size_t> order(inspection.heads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) {
    const HeadProfile& head = inspection.heads[i];
    return std::pair(head.label, -head.strength);
  });
  return order;
}

}  // namespace rootdk::lab
