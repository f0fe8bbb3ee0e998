#pragma once

// The metadata of a cache: which sequence holds which pages. Nothing here touches the memory behind the pages: what has
// to be copied or written is handed to an implementation as an AppendCall (core/kv_call.h).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "rootdk/kv_cache.h"

namespace rootdk {

inline constexpr std::int32_t kEvictedPage = -1;

// An id as messages show it.
constexpr std::int64_t number(SequenceId id) { return static_cast<std::int64_t>(id); }

// One entry of the table of sequences; entries are reused, with another generation in the id.
struct KvSequence {
  bool open = false;
  std::int64_t generation = 0;
  std::vector<std::int64_t> lengths;  // [layers]
  std::vector<std::int32_t> pages;    // logical page -> page of the pool, or kEvictedPage
  // Positions [gap_begin, gap_end) were evicted; empty where the two are equal.
  std::int64_t gap_begin = 0, gap_end = 0;

  std::int64_t shortest() const;
  std::int64_t longest() const;
};

// A page that a sequence writes into while another holds it too: its first `tokens` tokens are copied to a new page.
struct PageCopy {
  std::int32_t from = 0, to = 0;
  std::int64_t tokens = 0;
};

// Zeroed memory of the host that asks for large pages of the system: a cache is read from end to end, over and over.
class HostMemory {
 public:
  HostMemory() = default;
  explicit HostMemory(std::size_t bytes);
  std::byte* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
};

struct KvCacheState {
  explicit KvCacheState(const KvCacheConfig& given);

  // Throws, naming the operation, unless the id is that of an open sequence.
  KvSequence& find(std::string_view operation, SequenceId id);
  const KvSequence& find(std::string_view operation, SequenceId id) const;
  void require_layer(std::string_view operation, std::int64_t layer) const;

  SequenceId open();
  // A table entry for the next sequence, with its lengths at zero; it stays free until it is taken. Taking it cannot
  // fail, so that whatever a new sequence needs can be prepared before.
  std::int32_t prepare_slot();
  SequenceId take_slot(std::int32_t slot) noexcept;
  void close(KvSequence& sequence);
  // Drops every logical page from `count` on.
  void release_pages_from(KvSequence& sequence, std::int64_t count);
  void release(std::int32_t page);

  std::int64_t pages_for(std::int64_t length) const { return (length + config.page_size - 1) / config.page_size; }

  // Throws where a step is not allowed or the pages for it are not there. Returns how many pages have to be copied.
  // Changes nothing but the room of vectors.
  std::size_t plan_append(std::span<const KvStep> steps, std::int64_t layer);
  // Carries the plan out; nothing fails any more. `copies` has room for what was planned.
  void commit_append(std::span<const KvStep> steps, std::int64_t layer, std::vector<PageCopy>& copies);
  // Takes the last commit back, where the tokens could not be written: lengths, page tables, references and the order
  // of free pages are what they were.
  void undo_append(std::span<const KvStep> steps, std::int64_t layer, std::span<const PageCopy> copies);

  KvCacheConfig config;
  KvStorage storage;
  HostMemory memory;  // behind the storage, where it is the cache's own

  std::vector<KvSequence> sequences;
  std::vector<std::int32_t> free_slots;
  std::vector<std::int32_t> references;  // [pages]: sequences that hold the page
  std::vector<std::int32_t> free_pages;  // taken from the back
};

}  // namespace rootdk
