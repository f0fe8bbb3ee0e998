#pragma once

// rootdk bench decode: one new token a sequence over a long KV cache, against the rate at which this machine reads
// memory.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "rootdk/rootdk.h"

namespace rootdk::tools {

// Where the pages of a sequence lie: one after another, as appending to a fresh cache leaves them, or anywhere, as in a
// cache from which many sequences came and went.
enum class PageOrder { filled, random };

struct DecodeBenchCase {
  DType dtype = DType::bf16;  // of the cache; queries have the same, or bf16 where the cache is quantised
  std::int64_t batch = 1, heads = 32, kv_heads = 8, kv_len = 32768, head_dim = 128, value_dim = 0;  // 0: as head_dim
  std::int64_t page = 0;  // tokens of a page; 0: contiguous
  PageOrder page_order = PageOrder::random;
  std::int64_t tokens = 1;  // new tokens a sequence
  int threads = 1, repeat = 20;
  std::string target;

  DecodeBenchCase resolved() const;
  // Keys and values that one call reads, without the scales of quantised caches.
  double bytes() const;
};

struct DecodeBenchResult {
  std::string implementation;
  double best_seconds = 0, median_seconds = 0;
  double read_bandwidth = 0;  // bytes a second, best of the measurements between the runs
};

DecodeBenchResult run_decode_bench(const DecodeBenchCase& bench);
nlohmann::ordered_json to_json(const DecodeBenchCase& bench, const DecodeBenchResult& result);

}  // namespace rootdk::tools
