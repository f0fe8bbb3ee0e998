#pragma once

#include <cstring>
#include <exception>
#include <new>

#include "rootdk/c_api.h"

namespace rootdk::test {

// Takes no memory itself.
class WrongStatus : public std::exception {
 public:
  const char* what() const noexcept override { return "a C function neither succeeded nor said that memory ran out"; }
};

// A status as the exception that C++ would have thrown.
inline void check(rootdk_status status) {
  if (status == ROOTDK_OK) return;
  if (status != ROOTDK_OUT_OF_MEMORY || !std::strstr(rootdk_last_error(), "out of memory")) throw WrongStatus();
  throw std::bad_alloc();
}

}  // namespace rootdk::test
