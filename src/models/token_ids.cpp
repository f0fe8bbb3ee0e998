#include "models/token_ids.h"

#include <limits>

#include "core/check.h"

namespace rootdk {
namespace {

template <class T>
void read(const ConstTensorView& view, std::string_view name, std::vector<std::int32_t>& ids) {
  for (std::int64_t b = 0; b < view.size(0); ++b) {
    for (std::int64_t i = 0; i < view.size(1); ++i) {
      const auto id = static_cast<std::int64_t>(view.as<T>()[b * view.strides[0] + i * view.strides[1]]);
      require(id >= 0 && id <= std::numeric_limits<std::int32_t>::max(), name, ": id ", id, " is not a token id");
      ids.push_back(static_cast<std::int32_t>(id));
    }
  }
}

}  // namespace

std::vector<std::int32_t> token_ids(const ConstTensorView& view, std::string_view name, std::int64_t batch) {
  require(view.rank == 2 && (batch == 0 || view.size(0) == batch), name, ": expected [",
          batch ? std::to_string(batch) : "batch", ", len], got ", describe(view));
  require(view.device.kind == DeviceKind::cpu, name, ": expected memory of the CPU, got ", describe(view));
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(view.elements()));
  switch (view.dtype) {
    case DType::i32: read<std::int32_t>(view, name, ids); break;
    case DType::i64: read<std::int64_t>(view, name, ids); break;
    case DType::boolean: read<bool>(view, name, ids); break;
    default: fail(name, ": expected whole numbers, got ", describe(view));
  }
  return ids;
}

}  // namespace rootdk
