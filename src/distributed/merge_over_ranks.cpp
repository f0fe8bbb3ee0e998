#include <cstring>

#include "core/check.h"
#include "core/view_check.h"
#include "distributed/agreement.h"

namespace rootdk {
namespace {

constexpr const char* kOperation = "merge_over_ranks";

void check(const TensorView& out, const TensorView& lse) {
  require_given({kOperation, "out", out});
  require_rank({kOperation, "out", out}, 4);
  require_dtype({kOperation, "out", out}, {DType::f32, DType::bf16, DType::f16, DType::f64});
  require_device({kOperation, "out", out}, Device{}, "the CPU");
  require_contiguous_last({kOperation, "out", out});
  require_given({kOperation, "lse", lse});
  require_dtype({kOperation, "lse", lse}, {out.dtype == DType::f64 ? DType::f64 : DType::f32});
  require_shape({kOperation, "lse", lse}, {out.size(0), out.size(1), out.size(2)});
}

// A contiguous copy of the elements, in order.
void copy_elements(const ConstTensorView& view, std::byte* to) {
  const auto bytes = static_cast<std::int64_t>(size_of(view.dtype));
  const std::int64_t width = view.rank == 4 ? view.size(3) : 1;
  for (std::int64_t b = 0; b < view.size(0); ++b) {
    for (std::int64_t h = 0; h < view.size(1); ++h) {
      for (std::int64_t i = 0; i < view.size(2); ++i, to += width * bytes) {
        const std::int64_t at = b * view.stride(0) + h * view.stride(1) + i * view.stride(2);
        std::memcpy(to, view.as<std::byte>() + at * bytes, static_cast<std::size_t>(width * bytes));
      }
    }
  }
}

// The tensors of all ranks, one after another.
Tensor gather(Transport& transport, const ConstTensorView& view, double timeout_seconds) {
  const std::int64_t ranks = transport.size();
  std::vector<std::int64_t> shape = {ranks};
  for (int d = 0; d < view.rank; ++d) shape.push_back(view.size(d));
  Tensor sent(view.dtype, shape), all(view.dtype, shape);
  const std::size_t bytes = sent.bytes() / static_cast<std::size_t>(ranks);
  auto* to = static_cast<std::byte*>(sent.view().data);
  for (std::int64_t r = 0; r < ranks; ++r) copy_elements(view, to + r * static_cast<std::int64_t>(bytes));
  const std::vector<std::size_t> each(static_cast<std::size_t>(ranks), bytes);
  transport.all_to_all(sent.view().data, each, all.view().data, each, timeout_seconds);
  return all;
}

}  // namespace

void merge_over_ranks(Transport& transport, TensorView out, TensorView lse, double timeout_seconds) {
  distributed::agree(kOperation, transport, timeout_seconds, [&](distributed::Request& request) {
    check(out, lse);
    request.add("dtype", out.dtype);
    constexpr const char* kNames[] = {"batch", "heads", "q_len", "value_dim"};
    for (int d = 0; d < 4; ++d) request.add(kNames[d], out.size(d));
  });
  const Tensor all_out = gather(transport, out, timeout_seconds), all_lse = gather(transport, lse, timeout_seconds);
  merge_states(all_out, all_lse, out, lse);
}

}  // namespace rootdk
