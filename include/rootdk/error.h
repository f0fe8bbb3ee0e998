#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "rootdk/export.h"

namespace rootdk {

// What went wrong, for programs that act on it. The C ABI has a status code for each, Python an exception.
enum class ErrorKind : std::int32_t {
  invalid_argument = 0,  // the caller's values make no sense; the call will fail again
  unsupported = 1,       // the values make sense, but nothing that is built here serves them
  out_of_memory = 2,     // host or device memory ran out; a smaller call may succeed
  device = 3,            // the device, its driver, or another rank failed
  file = 4,              // a file is missing, cannot be read or written, or does not hold what it should
  internal = 5,          // a mistake of the library
};

// "invalid_argument", ...
ROOTDK_API const char* name_of(ErrorKind kind);

// The one exception of the library. Its message names the operation, the values and what was expected:
// "attention: heads 12 is not a multiple of kv_heads 5".
// Host memory that runs out may also surface as std::bad_alloc.
class ROOTDK_API Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : Error(ErrorKind::invalid_argument, message) {}
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace rootdk
