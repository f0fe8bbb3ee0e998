// Whatever bytes a pytorch_model.bin holds, reading it either throws rootdk::Error or gives tensors whose every element
// can be read. Bytes that are no archive are the pickle of one, so that the fuzzer need not write zip directories.

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "../tests/models/zip_writer.h"
#include "models/torch_file.h"
#include "rootdk/error.h"

namespace {

volatile std::uint64_t sink;

void touch_every_byte(const rootdk::ConstTensorView& view) {
  const auto bytes = static_cast<std::size_t>(view.elements()) * rootdk::size_of(view.dtype);
  const auto* data = view.as<std::uint8_t>();
  sink = std::accumulate(data, data + bytes, std::uint64_t{0});
}

void read(const std::string& bytes) {
  const auto file = rootdk::TorchFile::parse(std::as_bytes(std::span(bytes)), "fuzz");
  for (const auto& [name, tensor] : file.tensors()) {
    try {
      touch_every_byte(file.tensor(name));
    } catch (const rootdk::Error&) {
      // Strides that are not contiguous are refused on access.
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    read(bytes.starts_with("PK")
             ? bytes
             : rootdk::test::zip(
                   {{"m/data.pkl", bytes}, {"m/data/0", std::string(96, 'a')}, {"m/data/1", std::string(12, 'b')}}));
  } catch (const rootdk::Error&) {
  }
  return 0;
}
