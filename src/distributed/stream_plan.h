#pragma once

// Which rank sends which rows to which, for every item (a chunk of keys or a block of queries) in order of position.

#include <functional>
#include <vector>

#include "distributed/whole.h"

namespace rootdk::distributed {

// The rows of an item that one rank holds.
struct StreamPart {
  int owner = 0;
  std::int64_t local = 0;   // first row in the owner's tensors
  std::int64_t offset = 0;  // first row in the item
  std::int64_t rows = 0;
  std::vector<int> route{};  // ranks that need it, the owner left out, in order of the ring from the owner on
};

struct StreamItem {
  Run run{};
  std::vector<StreamPart> parts{};
  bool needed_here = false;
};

// needs(rank, run): whether the rank computes with the run.
using Needs = std::function<bool(int rank, const Run& run)>;

std::vector<StreamItem> plan_stream(const Whole& whole, Side side, const Shares& holders, int here, const Needs& needs);

// Whether rank r has queries that see the keys of a run, or keys that are seen by its queries.
class Sight {
 public:
  Sight(const Whole& whole, const Shares& shares, Side side);
  bool operator()(int rank, const Run& other) const;

 private:
  const Whole& whole_;
  Side side_;
  std::vector<std::vector<std::vector<Run>>> runs_;  // [rank][sequence]: what it holds of the sequence
};

}  // namespace rootdk::distributed
