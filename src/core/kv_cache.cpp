#include "rootdk/kv_cache.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/kv_cache_state.h"
#include "core/large_pages.h"
#include "core/out_of_memory.h"
#include "core/view_check.h"
#include "rootdk/export.h"

namespace rootdk {
namespace {

// An id is generation * 2^32 + slot.
constexpr int kSlotBits = 32;

std::int64_t slot_of(SequenceId id) { return static_cast<std::int64_t>(id) & ((std::int64_t{1} << kSlotBits) - 1); }

void check_sizes(const KvCacheConfig& c) {
  require(c.dtype == DType::f32 || c.dtype == DType::bf16 || c.dtype == DType::f16 || is_quantised(c.dtype),
          "kv_cache: dtype ", name_of(c.dtype), " is none of f32, bf16, f16, i8, f8e4m3");
  require(c.layers >= 1 && c.kv_heads >= 1 && c.head_dim >= 1 && c.value_dim >= 1, "kv_cache: layers ", c.layers,
          ", kv_heads ", c.kv_heads, ", head_dim ", c.head_dim, " and value_dim ", c.value_dim, " must be at least 1");
  constexpr std::int64_t kMany = std::int64_t{1} << 31;
  require(c.pages < kMany && c.page_size < kMany, "kv_cache: ", c.pages, " pages of ", c.page_size,
          " tokens: both must be below 2^31");
}

// Fills in what was left to defaults, and describes a contiguous cache by its pages.
KvCacheConfig resolve(KvCacheConfig c) {
  if (c.value_dim == 0) c.value_dim = c.head_dim;
  if (c.layout == KvLayout::contiguous) {
    require(c.max_sequences >= 1 && c.max_len >= 1, "kv_cache: contiguous needs max_sequences and max_len, got ",
            c.max_sequences, " and ", c.max_len);
    require(c.pages == 0 || c.pages == c.max_sequences, "kv_cache: pages ", c.pages, " belongs to the paged layout");
    c.pages = c.max_sequences;
    c.page_size = c.max_len;
  } else {
    require(c.layout == KvLayout::paged, "kv_cache: layout ", static_cast<int>(c.layout),
            " is neither contiguous (0) nor paged (1)");
    require(c.max_sequences == 0 && c.max_len == 0, "kv_cache: max_sequences ", c.max_sequences, " and max_len ",
            c.max_len, " belong to the contiguous layout");
    require(c.page_size >= 16 && c.page_size <= 256 && c.page_size % 16 == 0, "kv_cache: page_size ", c.page_size,
            " is not a multiple of 16 in 16 to 256");
    require(c.pages >= 1, "kv_cache: pages ", c.pages, " must be at least 1");
  }
  check_sizes(c);
  return c;
}

void check_part(const KvCacheConfig& c, std::string_view name, const TensorView& view, DType dtype,
                std::initializer_list<std::int64_t> shape) {
  const NamedView part{"kv_cache", name, view};
  require_given(part);
  require_dtype(part, {dtype});
  require_shape(part, shape);
  require_device(part, c.device, "the cache");
  require_addressable(part);
  std::int64_t step = 1;
  for (int i = view.rank; i-- > 0; step *= view.size(i)) {
    require(view.size(i) == 1 || view.stride(i) == step, "kv_cache: ", name, " is not contiguous: stride ",
            view.stride(i), " of dimension ", i, ", expected ", step);
  }
}

bool given(const KvStorage& s) {
  return s.k.defined() || s.v.defined() || s.k_scales.defined() || s.v_scales.defined();
}

void check_storage(const KvCacheConfig& c) {
  const KvStorage& s = c.storage;
  check_part(c, "storage.k", s.k, c.dtype, {c.layers, c.pages, c.kv_heads, c.page_size, c.head_dim});
  check_part(c, "storage.v", s.v, c.dtype, {c.layers, c.pages, c.kv_heads, c.page_size, c.value_dim});
  if (is_quantised(c.dtype)) {
    check_part(c, "storage.k_scales", s.k_scales, DType::f32, {c.layers, c.pages, c.kv_heads, c.page_size});
    check_part(c, "storage.v_scales", s.v_scales, DType::f32, {c.layers, c.pages, c.kv_heads, c.page_size});
  } else {
    require(!s.k_scales.defined() && !s.v_scales.defined(), "kv_cache: scales belong to i8 and f8e4m3, the cache is ",
            name_of(c.dtype));
  }
}

// One block for keys, values and scales, each at a boundary of a large page.
void take_memory(const KvCacheConfig& c, HostMemory& memory, KvStorage& storage) {
  const std::int64_t k[] = {c.layers, c.pages, c.kv_heads, c.page_size, c.head_dim};
  const std::int64_t v[] = {c.layers, c.pages, c.kv_heads, c.page_size, c.value_dim};
  storage.k = TensorView(nullptr, c.dtype, k);
  storage.v = TensorView(nullptr, c.dtype, v);
  if (is_quantised(c.dtype)) {
    storage.k_scales = TensorView(nullptr, DType::f32, std::span(k).first(4));
    storage.v_scales = TensorView(nullptr, DType::f32, std::span(k).first(4));
  }
  std::size_t offset = 0;
  auto place = [&](TensorView& view) {
    const std::size_t here = offset;
    const auto bytes = static_cast<std::size_t>(view.defined() ? view.elements() : 0) * size_of(view.dtype);
    const std::size_t unit = bytes >= kLargePage ? kLargePage : std::size_t{64};
    constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max() / 4;
    require(bytes <= kMost && offset <= kMost, "kv_cache: the memory overflows ", 8 * sizeof(std::size_t), " bits");
    offset += (bytes + unit - 1) / unit * unit;
    return here;
  };
  const std::size_t at[] = {place(storage.k), place(storage.v), place(storage.k_scales), place(storage.v_scales)};
  memory = HostMemory(offset);
  TensorView* parts[] = {&storage.k, &storage.v, &storage.k_scales, &storage.v_scales};
  for (std::size_t i = 0; i < std::size(parts); ++i) {
    if (parts[i]->defined()) parts[i]->data = memory.data() + at[i];
  }
}

// The pages of every layer, into a storage with more of them.
void copy_layers(const TensorView& from, const TensorView& to) {
  if (!from.defined()) return;
  const auto unit = static_cast<std::int64_t>(size_of(from.dtype));
  for (std::int64_t layer = 0; layer < from.size(0); ++layer) {
    std::memcpy(to.as<std::byte>() + layer * to.stride(0) * unit, from.as<std::byte>() + layer * from.stride(0) * unit,
                static_cast<std::size_t>(from.stride(0) * unit));
  }
}

}  // namespace

ROOTDK_API HostMemory::HostMemory(std::size_t bytes) {
  const std::size_t whole = (std::max<std::size_t>(bytes, 1) + kLargePage - 1) / kLargePage * kLargePage;
  const bool large = bytes >= kLargePage;
  auto* memory = static_cast<std::byte*>(large ? std::aligned_alloc(kLargePage, whole) : std::calloc(bytes + 1, 1));
  if (!memory) throw OutOfMemory("a KV cache", bytes);
  memory_.reset(memory);
  if (!large) return;
  ask_for_large_pages(memory, whole);
  std::memset(memory, 0, whole);
}

ROOTDK_API void HostMemory::Free::operator()(std::byte* memory) const { std::free(memory); }

std::int64_t KvSequence::shortest() const { return *std::min_element(lengths.begin(), lengths.end()); }
std::int64_t KvSequence::longest() const { return *std::max_element(lengths.begin(), lengths.end()); }

KvCacheState::KvCacheState(const KvCacheConfig& g) : config(resolve(g)), storage(config.storage) {
  if (given(storage)) {
    check_storage(config);
  } else {
    require(config.device.kind == DeviceKind::cpu,
            "kv_cache: memory on another device than the CPU is the caller's: give it as storage");
    take_memory(config, memory, storage);
  }
  const auto pages = static_cast<std::size_t>(config.pages);
  references.assign(pages, 0);
  free_pages.resize(pages);
  std::iota(free_pages.rbegin(), free_pages.rend(), 0);  // page 0 is taken first
}

const KvSequence& KvCacheState::find(std::string_view operation, SequenceId id) const {
  require(number(id) >= 0 && slot_of(id) < static_cast<std::int64_t>(sequences.size()), operation, ": sequence ",
          number(id), " is unknown");
  const KvSequence& sequence = sequences[static_cast<std::size_t>(slot_of(id))];
  require(sequence.open && sequence.generation == number(id) >> kSlotBits, operation, ": sequence ", number(id),
          " was closed");
  return sequence;
}

KvSequence& KvCacheState::find(std::string_view operation, SequenceId id) {
  return const_cast<KvSequence&>(std::as_const(*this).find(operation, id));
}

void KvCacheState::require_layer(std::string_view operation, std::int64_t layer) const {
  require(layer >= 0 && layer < config.layers, operation, ": layer ", layer, " is not in 0 to ", config.layers - 1);
}

std::int32_t KvCacheState::prepare_slot() {
  if (free_slots.empty()) {
    // Room for the slot on the free list is made here, so that close() cannot fail.
    free_slots.reserve(sequences.size() + 1);
    sequences.emplace_back();
    free_slots.push_back(static_cast<std::int32_t>(sequences.size() - 1));
  }
  const std::int32_t slot = free_slots.back();
  sequences[static_cast<std::size_t>(slot)].lengths.assign(static_cast<std::size_t>(config.layers), 0);
  return slot;
}

SequenceId KvCacheState::take_slot(std::int32_t slot) noexcept {
  free_slots.pop_back();
  KvSequence& sequence = sequences[static_cast<std::size_t>(slot)];
  sequence.open = true;
  return static_cast<SequenceId>((sequence.generation << kSlotBits) | slot);
}

SequenceId KvCacheState::open() { return take_slot(prepare_slot()); }

void KvCacheState::close(KvSequence& sequence) {
  release_pages_from(sequence, 0);
  sequence.gap_begin = sequence.gap_end = 0;
  sequence.open = false;
  ++sequence.generation;
  free_slots.push_back(static_cast<std::int32_t>(&sequence - sequences.data()));
}

void KvCacheState::release(std::int32_t page) {
  if (--references[static_cast<std::size_t>(page)] == 0) free_pages.push_back(page);
}

void KvCacheState::release_pages_from(KvSequence& sequence, std::int64_t count) {
  while (static_cast<std::int64_t>(sequence.pages.size()) > count) {
    if (sequence.pages.back() != kEvictedPage) release(sequence.pages.back());
    sequence.pages.pop_back();
  }
}

KvCache::KvCache(const KvCacheConfig& config) : state_(std::make_unique<KvCacheState>(config)) {}
KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

const KvCacheConfig& KvCache::config() const { return state_->config; }

KvCacheUsage KvCache::usage() const {
  const KvCacheState& s = *state_;
  auto bytes = [](const TensorView& view) {
    return view.defined() ? view.elements() * static_cast<std::int64_t>(size_of(view.dtype)) : 0;
  };
  return {.sequences = static_cast<std::int64_t>(s.sequences.size() - s.free_slots.size()),
          .pages = s.config.pages,
          .free_pages = static_cast<std::int64_t>(s.free_pages.size()),
          .shared_pages = std::count_if(s.references.begin(), s.references.end(), [](auto n) { return n > 1; }),
          .bytes = bytes(s.storage.k) + bytes(s.storage.v) + bytes(s.storage.k_scales) + bytes(s.storage.v_scales)};
}

void KvCache::grow(std::int64_t pages) {
  KvCacheState& s = *state_;
  require(s.config.layout == KvLayout::paged && s.memory.data(),
          "grow: the cache is contiguous, or its memory is the caller's");
  const std::int64_t before = s.config.pages;
  if (pages <= before) return;
  KvCacheConfig larger = s.config;
  larger.pages = pages;
  check_sizes(larger);
  HostMemory memory;
  KvStorage storage;
  take_memory(larger, memory, storage);
  // Fresh pages are taken last, the lowest of them first.
  std::vector<std::int32_t> fresh(static_cast<std::size_t>(pages - before));
  std::iota(fresh.rbegin(), fresh.rend(), static_cast<std::int32_t>(before));
  s.free_pages.reserve(static_cast<std::size_t>(pages));  // every page may be free at once: release() cannot fail
  s.references.resize(static_cast<std::size_t>(pages), 0);
  s.free_pages.insert(s.free_pages.begin(), fresh.begin(), fresh.end());
  copy_layers(s.storage.k, storage.k);
  copy_layers(s.storage.v, storage.v);
  copy_layers(s.storage.k_scales, storage.k_scales);
  copy_layers(s.storage.v_scales, storage.v_scales);
  s.config.pages = pages;
  s.storage = storage;
  s.memory = std::move(memory);
}

SequenceId KvCache::open() { return state_->open(); }

SequenceId KvCache::fork(SequenceId parent, std::int64_t length) {
  KvCacheState& s = *state_;
  const std::int64_t longest = s.find("fork", parent).longest();
  require(length >= -1 && length <= longest, "fork: length ", length, " is not in 0 to ", longest,
          ", the length of sequence ", number(parent));
  if (length < 0) length = longest;
  {
    const KvSequence& from = s.find("fork", parent);
    require(length <= from.gap_begin || length >= from.gap_end, "fork: length ", length,
            " lies in the evicted positions ", from.gap_begin, " to ", from.gap_end, " of sequence ", number(parent));
  }
  const std::int32_t slot = s.prepare_slot();  // may move the table: look the parent up afterwards
  const KvSequence& from = s.find("fork", parent);
  KvSequence& to = s.sequences[static_cast<std::size_t>(slot)];
  to.pages.assign(from.pages.begin(), from.pages.begin() + s.pages_for(length));
  for (const std::int32_t page : to.pages) {
    if (page != kEvictedPage) ++s.references[static_cast<std::size_t>(page)];
  }
  for (std::size_t layer = 0; layer < to.lengths.size(); ++layer) {
    to.lengths[layer] = std::min(from.lengths[layer], length);
  }
  if (length > from.gap_begin) {
    to.gap_begin = from.gap_begin;
    to.gap_end = from.gap_end;
  }
  return s.take_slot(slot);
}

void KvCache::close(SequenceId sequence) { state_->close(state_->find("close", sequence)); }

std::int64_t KvCache::length(SequenceId sequence, std::int64_t layer) const {
  state_->require_layer("length", layer);
  return state_->find("length", sequence).lengths[static_cast<std::size_t>(layer)];
}

void KvCache::trim(SequenceId id, std::int64_t length) {
  KvCacheState& s = *state_;
  KvSequence& sequence = s.find("trim", id);
  require(length >= 0 && length <= sequence.longest(), "trim: length ", length, " is not in 0 to ", sequence.longest(),
          ", the length of sequence ", number(id));
  require(length <= sequence.gap_begin || length >= sequence.gap_end, "trim: length ", length,
          " lies in the evicted positions ", sequence.gap_begin, " to ", sequence.gap_end, " of sequence ", number(id));
  s.release_pages_from(sequence, s.pages_for(length));
  for (std::int64_t& n : sequence.lengths) n = std::min(n, length);
  if (length <= sequence.gap_begin) sequence.gap_begin = sequence.gap_end = 0;
}

void KvCache::evict(SequenceId id, std::int64_t keep_first, std::int64_t keep_last) {
  KvCacheState& s = *state_;
  KvSequence& sequence = s.find("evict", id);
  require(keep_first >= 0 && keep_last >= 0, "evict: keep_first ", keep_first, " and keep_last ", keep_last,
          " must not be negative");
  const std::int64_t length = sequence.shortest();
  std::int64_t begin = keep_first, end = length - std::min(keep_last, length);
  if (begin >= end) return;  // everything is to be kept
  if (sequence.gap_begin < sequence.gap_end) {
    // Kernels skip one gap a sequence: a second one that does not touch it would lose the tokens between the two.
    const std::int64_t lost_begin = std::min(end, sequence.gap_end), lost_end = std::max(begin, sequence.gap_begin);
    require(lost_begin >= lost_end, "evict: keep_first ", keep_first, " and keep_last ", keep_last, " of ", length,
            " tokens evict the positions ", begin, " to ", end, ", apart from those evicted before, ",
            sequence.gap_begin, " to ", sequence.gap_end, " of sequence ", number(id),
            ": there is one gap a sequence, and the tokens ", lost_begin, " to ", lost_end, " would be lost");
    begin = std::min(begin, sequence.gap_begin);
    end = std::max(end, sequence.gap_end);
  }
  sequence.gap_begin = begin;
  sequence.gap_end = end;
  const std::int64_t size = s.config.page_size;
  // Pages that lie in the gap from their first token to their last.
  for (std::int64_t p = (begin + size - 1) / size; (p + 1) * size <= end; ++p) {
    std::int32_t& page = sequence.pages[static_cast<std::size_t>(p)];
    if (page != kEvictedPage) s.release(page);
    page = kEvictedPage;
  }
}

std::int64_t KvCache::page_of(SequenceId id, std::int64_t position) const {
  const KvSequence& sequence = state_->find("page_of", id);
  require(position >= 0 && position < sequence.longest(), "page_of: position ", position, " is not in 0 to ",
          sequence.longest() - 1, ", the tokens of sequence ", number(id));
  require(position < sequence.gap_begin || position >= sequence.gap_end, "page_of: position ", position,
          " of sequence ", number(id), " was evicted: its page is freed");
  return sequence.pages[static_cast<std::size_t>(position / state_->config.page_size)];
}

KvPage KvCache::page(std::int64_t page, std::int64_t layer) const {
  const KvCacheState& s = *state_;
  s.require_layer("page", layer);
  require(page >= 0 && page < s.config.pages, "page: ", page, " is not in 0 to ", s.config.pages - 1);
  const std::int32_t references = s.references[static_cast<std::size_t>(page)];
  require(references > 0, "page: page ", page, " is free: no sequence holds it");
  auto part = [&](const TensorView& view) -> ConstTensorView {
    if (!view.defined()) return {};
    ConstTensorView result = ConstTensorView(view).slice(0, layer, layer + 1).slice(1, page, page + 1);
    for (int i = 0; i + 2 < result.rank; ++i) {
      result.shape[static_cast<std::size_t>(i)] = result.shape[static_cast<std::size_t>(i) + 2];
      result.strides[static_cast<std::size_t>(i)] = result.strides[static_cast<std::size_t>(i) + 2];
    }
    result.rank -= 2;
    return result;
  };
  return {.k = part(s.storage.k),
          .v = part(s.storage.v),
          .k_scales = part(s.storage.k_scales),
          .v_scales = part(s.storage.v_scales),
          .references = references};
}

}  // namespace rootdk
