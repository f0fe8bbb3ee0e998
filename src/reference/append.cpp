// The specification of append: rotate in double, round once, write at the position's place. Pages that another sequence
// holds too have been given a successor by then; their tokens are copied first, in every layer.

#include <cmath>
#include <limits>
#include <vector>

#include "core/kv_call.h"
#include "core/strided.h"
#include "reference/implementations.h"

namespace rootdk::reference {
namespace {

std::int8_t nearest(double x, std::int8_t) {
  return static_cast<std::int8_t>(std::lrint(std::fmin(std::fmax(x, -127), 127)));
}
Float8E4M3 nearest(double x, Float8E4M3) { return Float8E4M3(x); }

// The largest magnitude becomes the largest number of the type. A row that is not finite gets the scale NaN, so that it
// shows.
template <class Stored>
float quantise(const std::vector<double>& row, double largest_stored, Stored* to) {
  double largest = 0;
  for (const double x : row) {
    if (!std::isfinite(x)) largest = std::numeric_limits<double>::quiet_NaN();
    if (std::fabs(x) > largest) largest = std::fabs(x);
  }
  const auto scale = static_cast<float>(largest / largest_stored);
  for (std::size_t d = 0; d < row.size(); ++d) {
    to[d] = scale > 0 ? nearest(row[d] / scale, Stored{}) : Stored{};
  }
  return scale;
}

// One of k and v: rows [1, kv_heads, tokens, dim] on their way into a layer's pages.
struct Part {
  ConstTensorView rows;
  TensorView pages, scales;
  const Rotation* rotation = nullptr;  // null: as it is
};

void store_row(const Part& part, std::vector<double>& row, std::int64_t offset) {
  const auto dim = static_cast<std::int64_t>(row.size());
  if (part.pages.dtype == DType::i8) {
    part.scales.as<float>()[offset] = quantise(row, 127, part.pages.as<std::int8_t>() + offset * dim);
    return;
  }
  if (part.pages.dtype == DType::f8e4m3) {
    part.scales.as<float>()[offset] = quantise(row, Float8E4M3::kLargest, part.pages.as<Float8E4M3>() + offset * dim);
    return;
  }
  with_floating_type(part.pages.dtype, [&](auto type) {
    auto* to = part.pages.as<decltype(type)>() + offset * dim;
    for (std::int64_t d = 0; d < dim; ++d) to[d] = from_double<decltype(type)>(row[static_cast<std::size_t>(d)]);
  });
}

template <class From>
void append_token(const AppendCall& call, const Part& part, const CallSequence& sequence, std::int64_t i) {
  const auto from = read<From, 4>(part.rows);
  const KvShape& shape = call.shape;
  const std::int64_t position = sequence.position + i, dim = part.rows.size(3);
  const std::int64_t page = sequence.pages[position / shape.page_size];
  std::vector<double> row(static_cast<std::size_t>(dim)), cosine, sine;
  if (part.rotation) {
    cosine.resize(part.rotation->frequency.size());
    sine.resize(cosine.size());
    part.rotation->angles(position, cosine, sine);
  }
  for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
    for (std::int64_t d = 0; d < dim; ++d) {
      row[static_cast<std::size_t>(d)] = to_double(from(0, head, sequence.row + i, d));
    }
    if (part.rotation) part.rotation->apply(row, cosine, sine);
    // Row of [layers, pages, kv_heads, page_size].
    const std::int64_t block = (call.layer * part.pages.size(1) + page) * shape.kv_heads + head;
    store_row(part, row, block * shape.page_size + position % shape.page_size);
  }
}

void append(const AppendCall& call) {
  copy_pages(call);
  const Part keys{call.k, call.storage.k, call.storage.k_scales, call.rotation.empty() ? nullptr : &call.rotation};
  const Part values{call.v, call.storage.v, call.storage.v_scales};
  for (const CallSequence& sequence : call.sequences) {
    for (const Part& part : {keys, values}) {
      with_floating_type(part.rows.dtype, [&](auto type) {
        for (std::int64_t i = 0; i < sequence.tokens; ++i) append_token<decltype(type)>(call, part, sequence, i);
      });
    }
  }
}

std::string refuse_append(const AppendCall& call) { return refuse_device(call.k.device); }

constexpr AppendImplementation kAppend[] = {
    {.name = "reference", .answer = [](const AppendCall& call) { return accept_unless(refuse_append(call), append); }}};

}  // namespace

std::span<const AppendImplementation> append_implementations() { return kAppend; }

}  // namespace rootdk::reference
