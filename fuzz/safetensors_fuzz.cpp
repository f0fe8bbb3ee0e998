// Whatever bytes a file holds, reading it either throws rootdk::Error or gives tensors whose every element can be read.

#include <cstddef>
#include <cstdint>
#include <numeric>

#include "models/safetensors.h"
#include "rootdk/error.h"

namespace {

volatile std::uint64_t sink;

void touch_every_byte(const rootdk::ConstTensorView& view) {
  const auto bytes = static_cast<std::size_t>(view.elements()) * rootdk::size_of(view.dtype);
  const auto* data = view.as<std::uint8_t>();
  sink = std::accumulate(data, data + bytes, std::uint64_t{0});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto file = rootdk::SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
    for (const std::string& name : file.names()) {
      try {
        touch_every_byte(file.tensor(name));
      } catch (const rootdk::Error&) {
        // A type or rank that has no view is refused on access.
      }
    }
  } catch (const rootdk::Error&) {
  }
  return 0;
}
