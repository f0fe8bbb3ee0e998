#pragma once

#include <cstdint>

namespace rootdk::lab {

// Forgets the peak so far; false where the system does not let us.
bool reset_peak_memory();
// Bytes: the most that this process has had resident since the reset, and what it has now.
std::int64_t peak_memory();
std::int64_t resident_memory();

}  // namespace rootdk::lab
