#pragma once

// Structs of callers that were built against another version of the header. A struct only ever grows at its end, and
// begins with the size its caller knows:
// - a shorter one comes from an older caller; the fields it lacks take their defaults;
// - a longer one comes from a newer caller; it is accepted while the fields this library does not know are zero.

#include <cstddef>
#include <cstring>

#include "core/check.h"

namespace rootdk::c_api {

// No struct will ever be larger; whatever says so was not initialised.
inline constexpr std::size_t kLargestStruct = 4096;

template <class Struct>
constexpr bool is_struct_size(std::size_t size) {
  return size >= sizeof(std::size_t) && size <= kLargestStruct && size % alignof(Struct) == 0;
}

template <class Struct>
void require_struct_size(std::size_t size, const char* name) {
  require(is_struct_size<Struct>(size), "c_api: ", name, " has struct_size ", size, ", expected ", sizeof(Struct),
          " (was it initialised with ", name, "_init?)");
}

// The struct as this library knows it.
template <class Struct>
Struct read_struct(const Struct* given, const Struct& defaults, const char* name) {
  const std::size_t size = given->struct_size;
  require_struct_size<Struct>(size, name);
  Struct known = defaults;
  std::memcpy(&known, given, size < sizeof known ? size : sizeof known);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof known; i < size; ++i) {
    require(bytes[i] == 0, ErrorKind::unsupported, "c_api: ", name, " has struct_size ", size, ", this library knows ",
            sizeof known, " bytes of it, and byte ", i, " behind them is not zero: it sets a field of a newer version");
  }
  known.struct_size = sizeof known;
  return known;
}

// Writes as much of a struct as its caller has room for.
template <class Struct>
void write_struct(Struct* to, std::size_t size, const Struct& value) {
  const std::size_t known = size < sizeof value ? size : sizeof value;
  std::memcpy(to, &value, known);
  std::memset(reinterpret_cast<unsigned char*>(to) + known, 0, size - known);
  to->struct_size = size;
}

// The body of an *_init function. A null pointer, or a size that no version has, is left alone.
template <class Struct>
void init_struct(Struct* to, std::size_t size, const Struct& defaults) {
  if (to && is_struct_size<Struct>(size)) write_struct(to, size, defaults);
}

}  // namespace rootdk::c_api
