#pragma once

namespace rootdk::cuda::ptx {

inline int load_acquire(const int* pointer) { return *pointer; }
inline void store_release(int* pointer, int value) { *pointer = value; }

}  // namespace rootdk::cuda::ptx
