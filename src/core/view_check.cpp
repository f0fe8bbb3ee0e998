#include "core/view_check.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <span>
#include <sstream>
#include <utility>

#include "core/check.h"

namespace rootdk {

void require_given(const NamedView& t) { require(t.view.defined(), t.operation, ": ", t.name, " is not given"); }

// Here and below, what a message describes is put into words only where it fails: small calls are over in the time that
// a few descriptions take.
void require_rank(const NamedView& t, int rank) {
  if (t.view.rank == rank) return;
  fail(t.operation, ": ", t.name, " has rank ", t.view.rank, ", expected ", rank, " (it is ", describe(t.view), ")");
}

void require_dtype(const NamedView& t, std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), t.view.dtype) != allowed.end()) return;
  std::ostringstream names;
  for (const DType* type = allowed.begin(); type != allowed.end(); ++type) {
    if (std::find(allowed.begin(), type, *type) != type) continue;  // f32 beside q's type, which may be f32
    names << (type != allowed.begin() ? " or " : "") << name_of(*type);
  }
  fail(t.operation, ": ", t.name, " has type ", name_of(t.view.dtype), ", expected ", names.str());
}

void require_shape(const NamedView& t, std::initializer_list<std::int64_t> shape) {
  require_rank(t, static_cast<int>(shape.size()));
  if (std::equal(shape.begin(), shape.end(), t.view.shape.begin())) return;
  fail(t.operation, ": ", t.name, " is ", describe(t.view), ", expected ", shape_text({shape.begin(), shape.size()}));
}

void require_broadcastable(const NamedView& t, std::initializer_list<std::int64_t> shape) {
  require_rank(t, static_cast<int>(shape.size()));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (t.view.shape[i] == 1 || t.view.shape[i] == shape.begin()[i]) continue;
    fail(t.operation, ": ", t.name, " is ", describe(t.view), ", which does not broadcast to ",
         shape_text({shape.begin(), shape.size()}));
  }
}

void require_contiguous_last(const NamedView& t) {
  const int last = t.view.rank - 1;
  if (t.view.elements() == 0) return;  // strides of nothing mean nothing; NumPy leaves zeros there
  require(t.view.size(last) <= 1 || t.view.stride(last) == 1, t.operation, ": the last dimension of ", t.name,
          " has stride ", t.view.stride(last), ", expected 1");
}

void require_addressable(const NamedView& t) {
  require(t.view.rank <= kMaxRank, t.operation, ": ", t.name, " has rank ", t.view.rank, ", over the maximum ",
          kMaxRank);
  for (int i = 0; i < t.view.rank; ++i) {
    require(t.view.size(i) >= 0, t.operation, ": ", t.name, " has the negative size ", t.view.size(i));
  }
  for (int i = 0; i < t.view.rank; ++i) {
    if (t.view.size(i) == 0) return;  // no elements: nothing is ever addressed
  }
  // The lowest and highest offset reached, and the number of elements, must fit in 63 bits.
  std::int64_t lowest = 0, highest = 0, count = 1, bytes = 0;
  bool overflow = false;
  for (int i = 0; i < t.view.rank; ++i) {
    std::int64_t reach = 0;
    overflow |= __builtin_mul_overflow(t.view.size(i) - 1, t.view.stride(i), &reach);
    overflow |= __builtin_add_overflow(reach < 0 ? lowest : highest, reach, reach < 0 ? &lowest : &highest);
    overflow |= __builtin_mul_overflow(count, t.view.size(i), &count);
  }
  const auto element = static_cast<std::int64_t>(size_of(t.view.dtype));
  overflow |= __builtin_mul_overflow(highest, element, &bytes) || __builtin_mul_overflow(lowest, element, &bytes) ||
              __builtin_mul_overflow(count, element, &bytes);
  if (overflow) fail(t.operation, ": ", t.name, " is ", describe(t.view), ", whose extent overflows 64 bits");
  if (!t.view.data) fail(t.operation, ": ", t.name, " is ", describe(t.view), " but its data pointer is null");
}

void require_no_overlap(const NamedView& t) {
  // Sorted by stride, each dimension must step over everything that the smaller ones reach.
  std::array<std::pair<std::int64_t, std::int64_t>, kMaxRank> steps;  // (|stride|, size)
  std::size_t count = 0;
  for (int i = 0; i < t.view.rank; ++i) {
    if (t.view.size(i) == 0) return;
    if (t.view.size(i) == 1) continue;
    // Inserted in order: of std::sort GCC 12 says that it may leave so small an array.
    std::size_t at = count++;
    const std::pair<std::int64_t, std::int64_t> step{std::abs(t.view.stride(i)), t.view.size(i)};
    for (; at > 0 && step < steps[at - 1]; --at) steps[at] = steps[at - 1];
    steps[at] = step;
  }
  std::int64_t reach = 1;
  for (const auto& [stride, size] : std::span(steps).first(count)) {
    require(stride >= reach, t.operation, ": the strides of ", t.name, " overlap: stride ", stride, " steps into the ",
            reach, " elements of the dimensions inside it");
    reach += stride * (size - 1);
  }
}

void require_device(const NamedView& t, Device device, std::string_view other) {
  if (t.view.device == device) return;
  auto text = [](Device d) {
    return d.kind == DeviceKind::cpu ? std::string("cpu") : "cuda:" + std::to_string(d.index);
  };
  fail(t.operation, ": ", t.name, " lies on ", text(t.view.device), " but ", other, " lies on ", text(device));
}

}  // namespace rootdk
