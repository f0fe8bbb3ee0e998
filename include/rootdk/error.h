#pragma once

#include <stdexcept>

#include "rootdk/export.h"

namespace rootdk {

// The one exception of the library. Its message names the operation, the values and what was expected:
// "attention: heads 12 is not a multiple of kv_heads 5".
class ROOTDK_API Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace rootdk
