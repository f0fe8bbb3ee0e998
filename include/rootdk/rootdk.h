#pragma once

#if __cplusplus < 202002L
#error "the headers of rootdk need C++20 (-std=c++20); from C and older C++ include rootdk/c_api.h"
#endif

// The whole public API. Each header can also be included on its own.
#include "rootdk/attention.h"
#include "rootdk/distributed.h"
#include "rootdk/dropout.h"
#include "rootdk/dtype.h"
#include "rootdk/error.h"
#include "rootdk/executor.h"
#include "rootdk/fp8.h"
#include "rootdk/kv_cache.h"
#include "rootdk/positions.h"
#include "rootdk/tensor.h"
#include "rootdk/version.h"
