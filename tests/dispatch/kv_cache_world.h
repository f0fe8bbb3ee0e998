#pragma once

// A KV cache and a plain model of what it should hold, driven by the same random schedule. Whatever the cache answers
// is compared with one causal pass of attention() over the model's tokens.

#include <cstdint>
#include <string>
#include <vector>

#include "rootdk/rootdk.h"
#include "support/device_memory.h"

namespace rootdk::test {

// What a schedule runs on.
struct WorldConfig {
  std::uint64_t seed = 0;
  KvCacheConfig cache = {};
  std::int64_t group = 1;          // query heads that share a key head
  DType q_dtype = DType::f32;      // of q, k, v and out
  std::string target = {};         // of attend
  DeviceMemory* memory = nullptr;  // of the device that the cache lies on; null: the CPU
  bool rope = false;
  double tolerance = 1e-5;  // of outputs and statistics, relative to their largest magnitude (at least 1)
};

std::string describe(const WorldConfig& config);

// One step of a schedule. The numbers are taken modulo what is there, so that any list of operations can be run: a
// failing schedule is shrunk by leaving operations out.
struct Operation {
  enum class Kind { open, append, fork, trim, evict, close, attend };
  Kind kind = Kind::open;
  std::uint32_t a = 0, b = 0, c = 0;
};

std::string describe(const Operation& operation);
std::vector<Operation> random_schedule(std::uint64_t seed, int operations);

// Runs the schedule; what went wrong, or nothing.
std::string run_schedule(const WorldConfig& config, const std::vector<Operation>& schedule);

// The same, and on failure the shortest schedule found that still fails, with its log.
std::string check_schedule(const WorldConfig& config, const std::vector<Operation>& schedule);

}  // namespace rootdk::test
