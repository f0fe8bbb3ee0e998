#pragma once

// Attention over ranks whose tensors lie on a device, against one call of attention() there. Without a GPU the same
// code runs over memory of the host, which takes the part of the device.

#include "distributed/ranks.h"

namespace rootdk::test {

// What carries the rows of a device: pinned memory of the host, or the transport itself.
enum class Route { host, device };

// Copies on a device between ranks of one process, for Route::device. Both sides have waited for their streams.
using DeviceCopy = void (*)(void* to, const void* from, std::size_t bytes);

struct DeviceRanks {
  DeviceMemory* memory = nullptr;  // null: the host takes the part of the device
  DeviceCopy copy = nullptr;
  Route route = Route::host;
};

struct DeviceCaseSizes {
  DType dtype = DType::f32;
  std::int64_t len = 2600, head_dim = 32;
};
// Full, causal, windows, packed, few rows, several entries; all with grouped heads.
std::vector<AttentionCase> device_cases(const DeviceCaseSizes& sizes);
// Shares for a case: zigzag, contiguous, striped in short runs; by documents where it is packed.
std::vector<Shares> device_shares(const AttentionCase& problem, int ranks);

// What one rank does in a forward and a backward call: its rows of the results, in f64.
Results run_device_rank(Transport& transport, const DeviceRanks& where, const AttentionCase& problem,
                        const DistributedParams& distributed);
// out, the statistics of rows and the gradients of the whole, in f64. Each rank is a thread.
Results run_device_ranks(const DeviceRanks& where, int ranks, const AttentionCase& problem, const Shares& shares);
// The same by one call.
Results run_one_call(const DeviceRanks& where, const AttentionCase& problem);

// Where results are not those of one call: out and the statistics of rows in a bit, where the device keeps them, and
// all others by more than `tolerance` of their size; "" where they are.
std::string device_difference(const DeviceRanks& where, const AttentionCase& problem, const Results& expected,
                              const Results& actual, double tolerance);
// Out and the statistics of rows have the bits of one call for 1 to 4 ranks; gradients are close.
void expect_bits_of_one_call(const DeviceRanks& where, const AttentionCase& problem, double tolerance);

}  // namespace rootdk::test
