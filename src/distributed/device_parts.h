#pragma once

// Which calls of attention() compute the rows of a rank on a device. Each run of rows is a call over the keys that it
// sees, without a copy of anything. Short runs side by side are one call of packed sequences, since a launch would take
// longer than they do.

#include <vector>

#include "distributed/whole.h"

namespace rootdk::distributed {

// A run of queries and the keys that they see, as rows of the whole, and the window that makes their positions those of
// the whole.
struct DevicePart {
  RowRange queries{}, keys{};
  KeyWindow window{};

  std::int64_t rows() const { return queries.end - queries.begin; }
  std::int64_t key_count() const { return keys.end - keys.begin; }
  bool is_short() const;
};

// One call: where its rows lie in the tensors of the rank, and its parts, whose rows follow one another.
struct DeviceCall {
  RowRange batch{};  // entries
  RowRange rows{};
  std::vector<DevicePart> parts{};

  // The ranges of keys, one after another. Those that touch are one, so that nothing is copied.
  std::vector<RowRange> keys() const;
  std::int64_t key_count() const;
  std::int64_t longest_queries() const;
  std::int64_t longest_keys() const;
  // Whether the call must be one of packed sequences.
  bool packed() const;
};

// Rows of the fewest queries that a call has to itself: fewer go to the kernels of decoding, whose sums have another
// order.
inline constexpr std::int64_t kFewRows = 16;

// Why the parts of a call cannot be calls of their own; empty: they can.
std::string refuse_parts(const Whole& whole);
// One for each run of queries of a share, in the order in which the rank holds them.
std::vector<DevicePart> device_parts(const Whole& whole, const std::vector<RowRange>& share);
// The calls that compute them: those with the most keys first.
std::vector<DeviceCall> device_calls(const std::vector<DevicePart>& parts, std::int64_t batch);
// The keys that the parts see, in order and without overlap.
std::vector<RowRange> keys_seen(const std::vector<DevicePart>& parts);
// What two lists have in common, in the order of the first. The second is sorted.
std::vector<RowRange> common_rows(const std::vector<RowRange>& rows, const std::vector<RowRange>& sorted);

}  // namespace rootdk::distributed
