// What the kernel says about each head while it computes: four heads that behave differently, told apart by numbers.

#include <cmath>

#include "core/strided.h"
#include "rootdk/attention.h"
#include "tools/tour/tour.h"

namespace rootdk::tools {
namespace {

constexpr std::int64_t kLength = 512, kHeadDim = 32, kHeads = 4, kMapCells = 8;

struct Head {
  const char* name;
  float query_gain;   // how sharp: the deviation of its logits
  float alibi_slope;  // how local
  float sink_pull;    // of key 0 on every query
};

constexpr Head kHeadList[kHeads] = {{.name = "broad", .query_gain = 1, .alibi_slope = 0, .sink_pull = 0},
                                    {.name = "local", .query_gain = 1, .alibi_slope = 0.125f, .sink_pull = 0},
                                    {.name = "sink", .query_gain = 1, .alibi_slope = 0, .sink_pull = 8},
                                    {.name = "saturated", .query_gain = 12, .alibi_slope = 0, .sink_pull = 0}};

struct Measured {
  Tensor lse{DType::f32, {1, kHeads, kLength}}, max_logit{DType::f32, {1, kHeads, kLength}};
  Tensor max_weight{DType::f32, {1, kHeads, kLength}}, entropy{DType::f32, {1, kHeads, kLength}};
  Tensor sum_p2{DType::f32, {1, kHeads, kLength}}, column_mass{DType::f32, {1, kHeads, kLength}};
  Tensor map{DType::f32, {1, kHeads, kMapCells, kMapCells}};
};

Measured run_heads() {
  Tensor q = normal_tensor({1, kHeads, kLength, kHeadDim}, 3), k = normal_tensor({1, kHeads, kLength, kHeadDim}, 4);
  const Tensor v = normal_tensor({1, kHeads, kLength, kHeadDim}, 5);
  Tensor out(DType::f32, {1, kHeads, kLength, kHeadDim}), slopes(DType::f32, {kHeads});
  const auto query = write<float, 4>(q.view()), key = write<float, 4>(k.view());
  for (std::int64_t h = 0; h < kHeads; ++h) {
    slopes.values<float>()[static_cast<std::size_t>(h)] = kHeadList[h].alibi_slope;
    for (std::int64_t i = 0; i < kLength; ++i) {
      for (std::int64_t d = 0; d < kHeadDim; ++d) query(0, h, i, d) *= kHeadList[h].query_gain;
      // The last dimension is kept for the sink: constant in every query, and only key 0 has it.
      query(0, h, i, kHeadDim - 1) = std::sqrt(static_cast<float>(kHeadDim));
      key(0, h, i, kHeadDim - 1) = i == 0 ? kHeadList[h].sink_pull : 0.0f;
    }
  }
  Measured m;
  attention(q, k, v, out, {.logits = {.alibi_slopes = slopes}, .causal = true},
            {.lse = m.lse,
             .max_logit = m.max_logit,
             .max_weight = m.max_weight,
             .entropy = m.entropy,
             .sum_p2 = m.sum_p2,
             .column_mass = m.column_mass,
             .pooled_map = m.map});
  return m;
}

ConstTensorView head_of(const Tensor& tensor, std::int64_t head) { return tensor.view().slice(1, head, head + 1); }

// What one would tell a colleague, from the numbers alone.
std::string diagnosis(double keys, double sum_p2, double first_mass) {
  if (first_mass > 0.5) return "most weight rests on key 0: an attention sink";
  if (sum_p2 > 0.7) return "nearly one-hot rows: little gradient passes";
  if (keys < 32) return "attends to a small neighbourhood";
  return "spreads over much of what it may see";
}

}  // namespace

void show_statistics(const Style& style) {
  const Measured m = run_heads();
  print_text(format(
      "Four heads over %d tokens, causal. The kernel measures every row inside the softmax, in O(n) memory; the "
      "maps are pooled from all n² weights, which are never stored. Rows are queries, columns are keys; darker is "
      "more, relative to the row.",
      int{kLength}));
  print_line();
  std::vector<TitledBlock> maps;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    ConstTensorView map(m.map.view().slice(1, h, h + 1).data, DType::f32, std::array{kMapCells, kMapCells});
    maps.push_back({kHeadList[h].name, draw_map(map, style)});
  }
  print_beside(maps, style);
  print_line();
  Table table(1);
  table.add({style.dim("head"), style.dim("max logit"), style.dim("lse"), style.dim("effective keys"),
             style.dim("top weight"), style.dim("Σp²"), style.dim("on key 0")});
  std::vector<std::string> verdicts;
  for (std::int64_t h = 0; h < kHeads; ++h) {
    const double keys = std::exp(mean_of(head_of(m.entropy, h))), sum_p2 = mean_of(head_of(m.sum_p2, h));
    const double first_mass = read<float, 3>(m.column_mass.view())(0, h, 0) / static_cast<double>(kLength);
    table.add({style.bold(kHeadList[h].name), format("%.1f", mean_of(head_of(m.max_logit, h))),
               format("%.1f", mean_of(head_of(m.lse, h))), format("%.1f", keys),
               format("%.3f", mean_of(head_of(m.max_weight, h))), format("%.3f", sum_p2),
               format("%.1f %%", 100 * first_mass)});
    verdicts.push_back("  " + style.bold(pad_right(kHeadList[h].name, 10)) + " " + diagnosis(keys, sum_p2, first_mass));
  }
  std::fputs(table.text().c_str(), stdout);
  print_line();
  for (const std::string& verdict : verdicts) print_line(verdict);
}

}  // namespace rootdk::tools
