#pragma once

// One attention call as a file: tensors q, k, v and whatever else takes part, and the metadata key "case", a JSON
// object with the numbers. docs/command-line.md describes the format.

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rootdk/attention.h"
#include "tools/memory.h"

namespace rootdk::tools {

// The tensors of a case in the types that the library wants, on the host.
struct AttentionCase {
  std::map<std::string, Tensor, std::less<>> tensors;
  AttentionParams scalars;            // without its tensors
  std::vector<std::string> warnings;  // fields of "case" that mean nothing here

  bool has_gradient() const { return tensors.contains("grad_out"); }
  DType dtype() const { return tensors.at("q").dtype(); }
  // Statistics and small parameters: f32, or f64 beside f64.
  DType small_dtype() const { return dtype() == DType::f64 ? DType::f64 : DType::f32; }

  // The tensor in the given memory; undefined where the case does not have it.
  ConstTensorView view(std::string_view name, Memory& memory) const;
  AttentionParams params(Memory& memory) const;
};

// q, k, v and grad_out are converted to `dtype`, or keep the type of q. Throws rootdk::Error that names the file, and
// the field and its value where one is missing or wrong.
AttentionCase read_attention_case(const std::filesystem::path& path, std::optional<DType> dtype);

}  // namespace rootdk::tools
