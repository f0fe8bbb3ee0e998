#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "rootdk/export.h"

namespace rootdk {

// Runs task(context, index) once for each index in [0, count), in any order, on any threads, and returns when all have
// ended. Plug in the host program's own pool by deriving from it; results do not depend on which executor ran them.
// Tasks do not throw. They may be run from several calls at once, and a task never starts another parallel call.
class ROOTDK_API Executor {
 public:
  using Task = void (*)(void* context, std::int64_t index);

  virtual ~Executor() = default;
  virtual int threads() const = 0;
  virtual void run(std::int64_t count, Task task, void* context) = 0;

  // Convenience over run() for any callable that takes the index.
  template <class Body>
  void parallel_for(std::int64_t count, Body&& body) {
    using Callable = std::remove_reference_t<Body>;
    run(
        count, [](void* context, std::int64_t index) { (*static_cast<Callable*>(context))(index); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }
};

// The library's own pool, as wide as ROOTDK_THREADS says (default: the hardware threads this process may use).
ROOTDK_API Executor& default_executor();

// A pool of the given width, shared by all who ask for the same width; 1 runs everything on the calling thread.
ROOTDK_API Executor& shared_executor(int threads);

}  // namespace rootdk
