#include "core/check.h"
#include "tools/memory.h"

namespace rootdk::tools {

std::unique_ptr<Memory> make_cuda_memory() {
  fail("--device cuda: this build has no CUDA (configure with -DROOTDK_CUDA=ON and nvcc 12.3 or newer)");
}

}  // namespace rootdk::tools
