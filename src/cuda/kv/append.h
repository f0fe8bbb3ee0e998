#pragma once

#include "core/kv_call.h"

namespace rootdk::cuda::kv {

const AppendImplementation& append();  // "cuda"

}  // namespace rootdk::cuda::kv
