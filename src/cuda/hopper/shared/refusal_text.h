#pragma once

#include <sstream>
#include <string>

namespace rootdk::cuda::hopper {

// A reason to refuse a call, with its values: the parts written one after another.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace rootdk::cuda::hopper
