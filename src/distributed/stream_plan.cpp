#include "distributed/stream_plan.h"

#include <algorithm>

namespace rootdk::distributed {

std::vector<StreamItem> plan_stream(const Whole& whole, Side side, const Shares& holders, int here,
                                    const Needs& needs) {
  const int ranks = static_cast<int>(holders.size());
  const std::vector<RowMap> maps = row_maps(holders);
  std::vector<StreamItem> items;
  for (const Run& run : side == Side::queries ? whole.query_blocks() : whole.key_chunks()) {
    const Sequence& sequence = whole.sequence_of(run);
    const std::int64_t first = (side == Side::queries ? sequence.q_begin : sequence.kv_begin) + run.begin;
    StreamItem item{.run = run};
    std::vector<bool> needed(holders.size());
    for (int r = 0; r < ranks; ++r) needed[static_cast<std::size_t>(r)] = needs(r, run);
    item.needed_here = needed[static_cast<std::size_t>(here)];
    if (std::none_of(needed.begin(), needed.end(), [](bool is) { return is; })) continue;
    for (int owner = 0; owner < ranks; ++owner) {
      for (const RowMap::Found& found : maps[static_cast<std::size_t>(owner)].within(first, first + run.rows())) {
        StreamPart part{
            .owner = owner, .local = found.local, .offset = found.begin - first, .rows = found.end - found.begin};
        for (int next = 1; next < ranks; ++next) {
          const int r = (owner + next) % ranks;
          if (needed[static_cast<std::size_t>(r)]) part.route.push_back(r);
        }
        item.parts.push_back(std::move(part));
      }
    }
    std::sort(item.parts.begin(), item.parts.end(),
              [](const StreamPart& a, const StreamPart& b) { return a.offset < b.offset; });
    items.push_back(std::move(item));
  }
  return items;
}

Sight::Sight(const Whole& whole, const Shares& shares, Side side) : whole_(whole), side_(side) {
  for (const RowMap& map : row_maps(shares)) {
    std::vector<std::vector<Run>>& of_rank = runs_.emplace_back(whole.sequences.size());
    for (std::size_t s = 0; s < whole.sequences.size(); ++s) {
      const Sequence& sequence = whole.sequences[s];
      const std::int64_t first = side == Side::queries ? sequence.q_begin : sequence.kv_begin;
      const std::int64_t length = side == Side::queries ? sequence.q_len : sequence.kv_len;
      for (const RowMap::Found& found : map.within(first, first + length)) {
        of_rank[s].push_back(
            {.sequence = static_cast<std::int64_t>(s), .begin = found.begin - first, .end = found.end - first});
      }
    }
  }
}

bool Sight::operator()(int rank, const Run& other) const {
  const auto& held = runs_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(other.sequence)];
  return std::any_of(held.begin(), held.end(), [&](const Run& run) {
    return side_ == Side::queries ? whole_.sees(run, other) : whole_.sees(other, run);
  });
}

}  // namespace rootdk::distributed
