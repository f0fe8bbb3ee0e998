#pragma once

// rootdk bench: how fast the kernels are, against this machine's measured peak and against the textbook computation.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rootdk/rootdk.h"

namespace rootdk::tools {

class Command;

struct BenchCase {
  bool backward = false;
  bool decode = false;  // bound by memory: bytes a second are reported too
  bool cuda = false;    // on the first CUDA device
  DType dtype = DType::f32;
  std::int64_t batch = 1, heads = 8, kv_heads = 0, len = 2048, kv_len = 0;  // 0: as heads, as len
  std::int64_t head_dim = 128, value_dim = 0;                               // 0: as head_dim
  std::int64_t page = 0;                                                    // decode: tokens of a page; 0: contiguous
  bool causal = false, stats = false;
  int threads = 1, repeat = 10;
  bool naive = true;
  std::string target = {};

  // The zeros filled in.
  BenchCase resolved() const;
  // Floating-point operations of the products over the positions that the mask keeps; backward counts 2.5 times.
  double flops() const;
  // Bytes of keys and values, each read once.
  double kv_bytes() const;
};

struct BenchResult {
  std::string implementation;
  double best_seconds = 0, median_seconds = 0;
  double gflops = 0;            // of the best run
  double peak_gflops = 0;       // best of the measurements between the runs; 0: the implementation has no such measure
  std::size_t peak_bytes = 0;   // memory that the call took beyond its tensors
  double bytes_per_second = 0;  // decode: keys and values
  double peak_bytes_per_second = 0;  // of a large copy, read and written; 0: not measured
  bool has_naive = false;
  double naive_seconds = 0;
  std::size_t naive_peak_bytes = 0;
};

BenchResult run_attention_bench(const BenchCase& bench);
nlohmann::ordered_json to_json(const BenchCase& bench, const BenchResult& result);

// Add a subcommand each.
void add_model_bench(Command& bench);
void add_generate_bench(Command& bench);
void add_distributed_bench(Command& bench);
void add_linear_bench(Command& bench);

}  // namespace rootdk::tools
