#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <string>

#include "rootdk/error.h"

namespace rootdk {

// Throws rootdk::Error with the parts written one after another:
//   require(heads % kv_heads == 0, "attention: heads ", heads, " is not a multiple of kv_heads ", kv_heads);
template <class... Parts>
[[noreturn]] void fail(ErrorKind kind, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(kind, message.str());
}

template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  fail(ErrorKind::invalid_argument, parts...);
}

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) fail(parts...);
}

// The same for a failure that is not the caller's: require(file.good(), ErrorKind::file, path, " cannot be read").
template <class... Parts>
void require(bool condition, ErrorKind kind, const Parts&... parts) {
  if (!condition) fail(kind, parts...);
}

// Runs what reads a file: bad values in it are the file's fault, not the caller's.
template <class Read>
auto reading_file(Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::invalid_argument) throw;
    throw Error(ErrorKind::file, error.what());
  }
}

// "[2, 8, 128, 64]", for messages.
inline std::string shape_text(std::span<const std::int64_t> sizes) {
  std::ostringstream text;
  text << '[';
  for (std::size_t i = 0; i < sizes.size(); ++i) text << (i ? ", " : "") << sizes[i];
  text << ']';
  return text.str();
}

}  // namespace rootdk
