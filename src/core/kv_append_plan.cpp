// Which pages an append takes: a plan first, then the change of the metadata.

#include <algorithm>
#include <map>

#include "core/check.h"
#include "core/kv_cache_state.h"

namespace rootdk {
namespace {

void require_distinct(std::span<const KvStep> steps) {
  std::vector<SequenceId> ids;
  ids.reserve(steps.size());
  for (const KvStep& step : steps) ids.push_back(step.sequence);
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  require(twice == ids.end(), "append: sequence ", twice == ids.end() ? -1 : number(*twice), " is named twice");
}

// Logical pages [first, last) that a step writes into.
struct PageRange {
  std::int64_t first = 0, last = 0;
};

PageRange written_pages(const KvCacheState& cache, std::int64_t length, std::int64_t tokens) {
  return {length / cache.config.page_size, tokens ? cache.pages_for(length + tokens) : length / cache.config.page_size};
}

void check_step(const KvCacheState& cache, const KvStep& step, std::int64_t length) {
  require(step.tokens >= 0, "append: tokens ", step.tokens, " of sequence ", number(step.sequence), " is negative");
  require(step.position == -1 || step.position == length, "append: position ", step.position, " of sequence ",
          number(step.sequence), " leaves a gap or overwrites: its length is ", length);
  constexpr std::int64_t kMany = std::int64_t{1} << 31;
  require(length + step.tokens < kMany, "append: sequence ", number(step.sequence), " would have ",
          length + step.tokens, " tokens; positions must stay below 2^31");
  if (cache.config.layout == KvLayout::contiguous) {
    require(length + step.tokens <= cache.config.max_len, "append: sequence ", number(step.sequence), " has ", length,
            " tokens and room for ", cache.config.max_len, ": ", step.tokens, " more do not fit");
  }
}

}  // namespace

std::size_t KvCacheState::plan_append(std::span<const KvStep> steps, std::int64_t layer) {
  require_distinct(steps);
  std::int64_t fresh = 0, copied = 0;
  std::map<std::int32_t, std::int32_t> left;  // shared page -> sequences that will have left it
  for (const KvStep& step : steps) {
    KvSequence& sequence = find("append", step.sequence);
    const std::int64_t length = sequence.lengths[static_cast<std::size_t>(layer)];
    check_step(*this, step, length);
    const PageRange written = written_pages(*this, length, step.tokens);
    const auto present = static_cast<std::int64_t>(sequence.pages.size());
    for (std::int64_t p = written.first; p < std::min(written.last, present); ++p) {
      const std::int32_t page = sequence.pages[static_cast<std::size_t>(p)];
      const std::int32_t holders = references[static_cast<std::size_t>(page)];
      if (holders == 1) continue;
      if (holders - left[page] > 1) ++copied, ++left[page];
    }
    fresh += std::max<std::int64_t>(0, written.last - present);
  }
  const std::int64_t wanted = fresh + copied;
  const auto free = static_cast<std::int64_t>(free_pages.size());
  require(wanted <= free, "append: the cache is full: ", wanted, wanted == 1 ? " page" : " pages", " of ",
          config.page_size, " tokens needed, ", free, " of ", config.pages, " free");
  for (const KvStep& step : steps) {
    KvSequence& sequence = find("append", step.sequence);
    const std::int64_t length = sequence.lengths[static_cast<std::size_t>(layer)];
    const auto room = static_cast<std::size_t>(pages_for(length + step.tokens));
    // Growing by doubling keeps the cost of many small appends linear.
    if (room > sequence.pages.capacity()) sequence.pages.reserve(std::max(room, 2 * sequence.pages.capacity()));
  }
  return static_cast<std::size_t>(copied);
}

void KvCacheState::commit_append(std::span<const KvStep> steps, std::int64_t layer, std::vector<PageCopy>& copies) {
  auto take = [this] {
    const std::int32_t page = free_pages.back();
    free_pages.pop_back();
    references[static_cast<std::size_t>(page)] = 1;
    return page;
  };
  for (const KvStep& step : steps) {
    KvSequence& sequence = find("append", step.sequence);
    std::int64_t& length = sequence.lengths[static_cast<std::size_t>(layer)];
    const PageRange written = written_pages(*this, length, step.tokens);
    for (std::int64_t p = written.first; p < written.last; ++p) {
      if (p == static_cast<std::int64_t>(sequence.pages.size())) {
        sequence.pages.push_back(take());
        continue;
      }
      std::int32_t& page = sequence.pages[static_cast<std::size_t>(p)];
      if (references[static_cast<std::size_t>(page)] == 1) continue;
      const std::int64_t used = std::min(sequence.longest() - p * config.page_size, config.page_size);
      const std::int32_t own = take();
      if (used > 0) copies.push_back({.from = page, .to = own, .tokens = used});
      release(page);
      page = own;
    }
    length += step.tokens;
  }
}

// Steps, pages and copies from last to first, so that pages return to the free list in the order they were taken in.
void KvCacheState::undo_append(std::span<const KvStep> steps, std::int64_t layer, std::span<const PageCopy> copies) {
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    KvSequence& sequence = find("append", step->sequence);
    std::int64_t& length = sequence.lengths[static_cast<std::size_t>(layer)];
    length -= step->tokens;
    const PageRange written = written_pages(*this, length, step->tokens);
    // A sequence holds the pages of its longest layer: what is beyond them was fresh.
    const std::int64_t present = pages_for(sequence.longest());
    release_pages_from(sequence, present);
    for (std::int64_t p = std::min(written.last, present); p-- > written.first;) {
      std::int32_t& page = sequence.pages[static_cast<std::size_t>(p)];
      const auto copy = std::find_if(copies.begin(), copies.end(), [&](const PageCopy& c) { return c.to == page; });
      if (copy == copies.end()) continue;
      release(page);
      page = copy->from;
      ++references[static_cast<std::size_t>(page)];
    }
  }
}

}  // namespace rootdk
