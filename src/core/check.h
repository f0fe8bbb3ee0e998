#pragma once

#include <sstream>

#include "rootdk/error.h"

namespace rootdk {

// Throws rootdk::Error with the parts written one after another:
//   require(heads % kv_heads == 0, "attention: heads ", heads, " is not a multiple of kv_heads ", kv_heads);
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(message.str());
}

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (!condition) fail(parts...);
}

}  // namespace rootdk
