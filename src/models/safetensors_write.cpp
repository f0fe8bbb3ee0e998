#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/check.h"
#include "models/pending_file.h"
#include "models/safetensors.h"

namespace rootdk {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHeaderAlignment = 8;

std::string_view type_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::f64: return "F64";
    case DType::i32: return "I32";
    case DType::i64: return "I64";
    case DType::boolean: return "BOOL";
    case DType::i8: return "I8";
    case DType::f8e4m3: return "F8_E4M3";
  }
  fail("safetensors: element type ", static_cast<int>(dtype), " is unknown");
}

std::uint64_t byte_count(const ConstTensorView& view) {
  return static_cast<std::uint64_t>(view.elements()) * size_of(view.dtype);
}

void check_tensors(const fs::path& path, std::span<const NamedTensor> tensors) {
  std::set<std::string_view> seen;
  for (const auto& [name, view] : tensors) {
    require(view.defined(), "cannot write ", path.string(), ": tensor '", name, "' is not given");
    require(view.device.kind == DeviceKind::cpu, "cannot write ", path.string(), ": tensor '", name, "' is ",
            describe(view), ", not on the CPU");
    require(name != "__metadata__", "cannot write ", path.string(), ": '__metadata__' cannot name a tensor");
    require(seen.insert(name).second, "cannot write ", path.string(), ": tensor '", name, "' is given twice");
  }
}

std::string header_text(const fs::path& path, std::span<const NamedTensor* const> order,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    const ConstTensorView& view = tensor->view;
    const std::uint64_t end = offset + byte_count(view);
    header[tensor->name] = {{"dtype", type_name(view.dtype)},
                            {"shape", std::vector(view.shape.begin(), view.shape.begin() + view.rank)},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  try {
    std::string text = header.dump();
    // Spaces at the end, which the format allows, align the data.
    text.append((kHeaderAlignment - text.size() % kHeaderAlignment) % kHeaderAlignment, ' ');
    return text;
  } catch (const nlohmann::json::exception& error) {
    fail("cannot write ", path.string(), ": a name or the metadata is not UTF-8: ", error.what());
  }
}

bool is_contiguous(const ConstTensorView& view) {
  std::int64_t step = 1;
  for (int i = view.rank; i-- > 0;) {
    if (view.size(i) != 1 && view.stride(i) != step) return false;
    step *= view.size(i);
  }
  return true;
}

// The elements of a strided view in row-major order.
std::vector<std::byte> gathered(const ConstTensorView& view) {
  const auto width = static_cast<std::int64_t>(size_of(view.dtype));
  std::vector<std::byte> result(byte_count(view));
  std::byte* target = result.data();
  std::array<std::int64_t, kMaxRank> index{};
  for (std::int64_t n = view.elements(); n > 0; --n) {
    std::int64_t offset = 0;
    for (int i = 0; i < view.rank; ++i) offset += index[static_cast<std::size_t>(i)] * view.stride(i);
    std::memcpy(target, view.as<std::byte>() + offset * width, static_cast<std::size_t>(width));
    target += width;
    for (int i = view.rank; i-- > 0;) {
      if (++index[static_cast<std::size_t>(i)] < view.size(i)) break;
      index[static_cast<std::size_t>(i)] = 0;
    }
  }
  return result;
}

}  // namespace

void write_safetensors(const fs::path& path, std::span<const NamedTensor> tensors,
                       const std::map<std::string, std::string>& metadata) {
  check_tensors(path, tensors);
  // Wide types first: every tensor is then aligned to its own type, and readers need no copy.
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::ranges::stable_sort(order, std::greater<>{}, [](const NamedTensor* t) { return size_of(t->view.dtype); });

  const std::string header = header_text(path, order, metadata);
  const std::uint64_t length = header.size();
  PendingFile file(path);
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const NamedTensor* tensor : order) {
    if (tensor->view.elements() == 0) continue;
    if (is_contiguous(tensor->view)) {
      file.write(tensor->view.data, byte_count(tensor->view));
    } else {
      const std::vector<std::byte> copy = gathered(tensor->view);
      file.write(copy.data(), copy.size());
    }
  }
  file.commit();
}

}  // namespace rootdk
