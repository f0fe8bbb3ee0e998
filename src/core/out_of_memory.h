#pragma once

#include <cstddef>
#include <cstdio>
#include <new>

namespace rootdk {

// What there is no memory for, and how much. Says so without taking memory itself.
class OutOfMemory : public std::bad_alloc {
 public:
  OutOfMemory(const char* what_for, std::size_t bytes) noexcept {
    std::snprintf(message_, sizeof message_, "out of memory: there are no %zu bytes for %s", bytes, what_for);
  }
  const char* what() const noexcept override { return message_; }

 private:
  char message_[128];
};

// The message for the user; other bad_allocs carry no useful message.
inline const char* message_of(const std::bad_alloc& error) {
  const auto* ours = dynamic_cast<const OutOfMemory*>(&error);
  return ours ? ours->what() : "out of memory";
}

}  // namespace rootdk
