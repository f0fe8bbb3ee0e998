#include "core/check.h"
#include "tools/bench/cuda_bench.h"

namespace rootdk::tools {

BenchResult run_cuda_bench(const BenchCase&) { fail("bench: this build has no CUDA"); }

}  // namespace rootdk::tools
