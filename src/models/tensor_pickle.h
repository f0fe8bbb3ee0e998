#pragma once

// The pickle of a dictionary of tensors, as torch.save writes a state_dict. Nothing is executed: the few functions that
// such a pickle calls are known by name, and any other is refused.

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "rootdk/tensor.h"

namespace rootdk {

struct PickledTensor {
  std::string storage;  // the member data/STORAGE of the archive
  DType dtype = DType::f32;
  std::int64_t offset = 0;  // elements
  std::vector<std::int64_t> shape{}, strides{};
};

// Tensors by name; what else the dictionary holds is left out. Throws rootdk::Error; `where` is what messages call the
// file.
std::map<std::string, PickledTensor> read_tensor_pickle(std::span<const std::byte> pickle, const std::string& where);

}  // namespace rootdk
