#pragma once

#include <utility>

namespace rootdk {

// For statics: the value is never destroyed. A process may end while other threads of it still compute, in Python
// daemon threads do, and they need it until the last moment. librootdk.so stays mapped for the same reason.
template <class T>
T& immortal(T value) {
  return *new T(std::move(value));
}

}  // namespace rootdk
