#pragma once

#include "tools/bench/bench.h"

namespace rootdk::tools {

// A case on the first CUDA device, timed with events; the peaks are measured between the runs. Implemented by
// no_cuda_bench.cpp where the build has no CUDA.
BenchResult run_cuda_bench(const BenchCase& bench);

}  // namespace rootdk::tools
