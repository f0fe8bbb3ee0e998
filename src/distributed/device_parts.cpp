#include "distributed/device_parts.h"

#include <algorithm>

#include "core/check.h"

namespace rootdk::distributed {
namespace {

constexpr std::int64_t kShortKeys = 2048;  // runs of so few keys are packed
constexpr std::int64_t kAligned = 1024;    // a run of keys begins at a tile of the kernels

bool same(const KeyWindow& a, const KeyWindow& b) {
  return a.causal == b.causal && a.left == b.left && a.right == b.right;
}

// The queries [begin, end) of a sequence, counted in the whole.
DevicePart part_of(const KeyWindow& window, const Sequence& sequence, const RowRange& queries) {
  const std::int64_t first = sequence.position(queries.begin - sequence.q_begin);
  const std::int64_t after = sequence.position(queries.end - sequence.q_begin);
  const std::int64_t right = window.causal ? 0 : window.right;
  const std::int64_t end = right < 0 ? sequence.kv_len : std::min(sequence.kv_len, after + right);
  const std::int64_t begin = window.left < 0 ? 0 : std::max<std::int64_t>(0, first - window.left) / kAligned * kAligned;
  DevicePart part{.queries = queries, .keys = {sequence.kv_begin + begin, sequence.kv_begin + end}, .window = window};
  // The last query of a call is at its last key.
  const std::int64_t shift = end - after;
  if (window.left >= 0) part.window.left += shift;
  if (!window.causal && right >= 0) {
    part.window.right = right - shift;
    part.window.causal = part.window.right == 0;
  }
  if (part.window.causal) part.window.right = -1;
  return part;
}

}  // namespace

bool DevicePart::is_short() const { return key_count() <= kShortKeys || rows() <= kFewRows; }

std::vector<RowRange> DeviceCall::keys() const {
  std::vector<RowRange> ranges;
  for (const DevicePart& part : parts) {
    if (!ranges.empty() && ranges.back().end == part.keys.begin) {
      ranges.back().end = part.keys.end;
    } else {
      ranges.push_back(part.keys);
    }
  }
  return ranges;
}

std::int64_t DeviceCall::key_count() const {
  std::int64_t count = 0;
  for (const DevicePart& part : parts) count += part.key_count();
  return count;
}

std::int64_t DeviceCall::longest_queries() const {
  std::int64_t longest = 0;
  for (const DevicePart& part : parts) longest = std::max(longest, part.rows());
  return longest;
}

std::int64_t DeviceCall::longest_keys() const {
  std::int64_t longest = 0;
  for (const DevicePart& part : parts) longest = std::max(longest, part.key_count());
  return longest;
}

bool DeviceCall::packed() const { return parts.size() > 1 || parts[0].rows() <= kFewRows; }

std::string refuse_parts(const Whole& whole) {
  if (!whole.window.causal && whole.window.left < 0 && whole.window.right < 0) return {};
  for (const Sequence& sequence : whole.sequences) {
    if (sequence.kv_len < sequence.q_len) {
      return "causal or a window with fewer keys (" + std::to_string(sequence.kv_len) + ") than queries (" +
             std::to_string(sequence.q_len) + ")";
    }
  }
  return {};
}

std::vector<DevicePart> device_parts(const Whole& whole, const std::vector<RowRange>& share) {
  std::vector<DevicePart> parts;
  for (const RowRange& range : share) {
    auto sequence = std::upper_bound(whole.sequences.begin(), whole.sequences.end(), range.begin,
                                     [](std::int64_t row, const Sequence& s) { return row < s.q_begin + s.q_len; });
    for (; sequence != whole.sequences.end() && sequence->q_begin < range.end; ++sequence) {
      const RowRange queries{std::max(range.begin, sequence->q_begin),
                             std::min(range.end, sequence->q_begin + sequence->q_len)};
      if (queries.begin < queries.end) parts.push_back(part_of(whole.window, *sequence, queries));
    }
  }
  return parts;
}

std::vector<DeviceCall> device_calls(const std::vector<DevicePart>& parts, std::int64_t batch) {
  std::vector<DeviceCall> calls;
  std::int64_t begin = 0;
  for (const DevicePart& part : parts) {
    const std::int64_t end = begin + part.rows();
    DeviceCall* const last = calls.empty() ? nullptr : &calls.back();
    if (last && batch == 1 && part.is_short() && last->parts.back().is_short() &&
        same(last->parts[0].window, part.window)) {
      last->parts.push_back(part);
      last->rows.end = end;
    } else if (batch > 1 && part.rows() <= kFewRows) {  // packed sequences have no batch
      for (std::int64_t b = 0; b < batch; ++b) {
        calls.push_back({.batch = {b, b + 1}, .rows = {begin, end}, .parts = {part}});
      }
    } else {
      calls.push_back({.batch = {0, batch}, .rows = {begin, end}, .parts = {part}});
    }
    begin = end;
  }
  std::stable_sort(calls.begin(), calls.end(),
                   [](const DeviceCall& a, const DeviceCall& b) { return a.longest_keys() > b.longest_keys(); });
  return calls;
}

std::vector<RowRange> keys_seen(const std::vector<DevicePart>& parts) {
  std::vector<RowRange> all;
  for (const DevicePart& part : parts) {
    if (part.key_count() > 0) all.push_back(part.keys);
  }
  std::sort(all.begin(), all.end(), [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
  std::vector<RowRange> joined;
  for (const RowRange& range : all) {
    if (!joined.empty() && range.begin <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

std::vector<RowRange> common_rows(const std::vector<RowRange>& rows, const std::vector<RowRange>& sorted) {
  std::vector<RowRange> common;
  for (const RowRange& range : rows) {
    for (const RowRange& other : sorted) {
      const RowRange both{std::max(range.begin, other.begin), std::min(range.end, other.end)};
      if (both.begin < both.end) common.push_back(both);
    }
  }
  return common;
}

}  // namespace rootdk::distributed
