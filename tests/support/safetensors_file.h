#pragma once

// Reads the fixtures of tests/data: small, trusted safetensors files. Not with src/models/safetensors, which needs a
// JSON library: these tests also run where only the library proper is built (other processors).

#include <map>
#include <string>

#include "rootdk/tensor.h"

namespace rootdk::test {

struct SafetensorsFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

SafetensorsFile read_safetensors(const std::string& path);

// The value of `key` in a flat JSON object, as text without quotes; empty where absent.
std::string json_field(const std::string& object, const std::string& key);

}  // namespace rootdk::test
