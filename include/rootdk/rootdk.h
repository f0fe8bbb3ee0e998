#pragma once

// The whole public API. Each header can also be included on its own.
#include "rootdk/attention.h"
#include "rootdk/dropout.h"
#include "rootdk/dtype.h"
#include "rootdk/error.h"
#include "rootdk/executor.h"
#include "rootdk/kv_cache.h"
#include "rootdk/positions.h"
#include "rootdk/tensor.h"
#include "rootdk/version.h"
