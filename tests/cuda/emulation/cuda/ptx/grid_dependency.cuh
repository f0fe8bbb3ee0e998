#pragma once

namespace rootdk::cuda::ptx {

inline void allow_next_kernel() {}
inline void wait_for_previous_kernel() {}

}  // namespace rootdk::cuda::ptx
