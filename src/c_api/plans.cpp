#include "c_api/plans.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "c_api/convert.h"
#include "core/environment.h"
#include "dispatch/planned.h"

namespace rootdk::c_api {
namespace {

using dispatch::Planned;

// --- what a plan is found by ----------------------------------------------------------------------------------------

constexpr std::size_t kForwardTensors = 16, kBackwardTensors = 19;
constexpr std::size_t kWordsOfTensor = 2 + 2 * ROOTDK_MAX_RANK, kNumbers = 16;

// All of a call but its addresses. Of these the copy engine's alignment counts.
class Key {
 public:
  static constexpr std::uintptr_t kAlignment = 16;

  void add(std::uint64_t word) { words_[count_++] = word; }
  void add(std::int64_t number) { add(static_cast<std::uint64_t>(number)); }
  void add(double number) { add(std::bit_cast<std::uint64_t>(number)); }
  void add(std::int32_t a, std::int32_t b) {
    add(std::uint64_t{static_cast<std::uint32_t>(a)} | std::uint64_t{static_cast<std::uint32_t>(b)} << 32);
  }

  // False where the tensor is for the ordinary way, which says what is wrong with it.
  bool add(const rootdk_tensor* tensor) {
    if (!tensor) {
      add(std::uint64_t{0});
      return true;
    }
    const rootdk_tensor& t = *tensor;
    if (!t.data || t.rank < 1 || t.rank > ROOTDK_MAX_RANK || t.device_kind != ROOTDK_CUDA) return false;
    const auto misalignment = reinterpret_cast<std::uintptr_t>(t.data) % kAlignment;
    add(1 + t.rank, static_cast<std::int32_t>(misalignment));  // never 0, which is no tensor
    add(t.dtype, t.device_index);
    for (int i = 0; i < t.rank; ++i) add(t.shape[i]);
    for (int i = 0; i < t.rank; ++i) add(t.strides[i]);
    return true;
  }

  std::span<const std::uint64_t> words() const { return std::span(words_).first(count_); }

  std::uint64_t hash() const {
    std::uint64_t hash = 0x9e3779b97f4a7c15;
    for (const std::uint64_t word : words()) hash = (std::rotl(hash, 23) ^ word) * 0xff51afd7ed558ccd;
    return hash ^ hash >> 32;
  }

 private:
  std::array<std::uint64_t, kBackwardTensors * kWordsOfTensor + kNumbers> words_;  // the first count_ are set
  std::size_t count_ = 0;
};

template <class Struct>
bool is_current(const Struct* given) {
  return given && given->struct_size == sizeof(Struct);
}

// A GPU's stream and memory, and nothing that forces or prints a choice.
bool is_plain(const rootdk_execution* execution) {
  return is_current(execution) && !execution->target && execution->threads >= 0 && !environment().verbose &&
         environment().target.empty();
}

// Dropout has a new seed in every call, and e4m3 is prepared by more than one kernel: neither is remembered.
bool add_numbers(Key& key, const rootdk_attention_params* params) {
  if (!is_current(params)) return false;
  const rootdk_attention_params& p = *params;
  for (const rootdk_tensor* rare :
       {p.block_mask, p.relative_table, p.additive_v, p.q_scales, p.k_scales, p.v_scales, p.q_shift}) {
    if (rare) return false;
  }
  if (p.dropout != 0 || p.compute != ROOTDK_COMPUTE_AS_Q || p.rotate != 0) return false;
  key.add(p.score, p.scale_kind);
  key.add(p.causal, 0);
  for (const double number : {p.scale, p.temperature, p.softcap}) key.add(number);
  for (const std::int64_t number :
       {p.window_left, p.window_right, p.block_q, p.block_kv, p.max_q_len, p.max_kv_len, p.relative_zero}) {
    key.add(number);
  }
  return true;
}

template <class Tensors>
bool add_tensors(Key& key, const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const rootdk_tensor* tensor) { return key.add(tensor); });
}

// --- what is remembered ---------------------------------------------------------------------------------------------

template <class Call>
class Plans {
 public:
  // Takes a plan out while its call runs, so that a call inside the caller's allocator neither changes nor drops it.
  std::unique_ptr<Planned<Call>> take(const Key& key, std::uint64_t hash) {
    Entry& entry = entry_of(hash);
    const bool same = entry.planned && entry.hash == hash && std::ranges::equal(entry.key, key.words());
    return same ? std::move(entry.planned) : nullptr;
  }
  void put_back(const Key& key, std::uint64_t hash, std::unique_ptr<Planned<Call>> planned) {
    Entry& entry = entry_of(hash);
    const bool same = !entry.planned && entry.hash == hash && std::ranges::equal(entry.key, key.words());
    if (same) entry.planned = std::move(planned);
  }

  // Whether a call comes the second time. Calls of ever new shapes would otherwise pay for plans that they never use.
  bool is_worth_it(std::uint64_t hash) {
    Entry& entry = entry_of(hash);
    return std::exchange(entry.last_seen, hash) == hash;
  }

  void remember(const Key& key, std::uint64_t hash, Planned<Call>&& planned) {
    try {
      std::vector<std::uint64_t> words(key.words().begin(), key.words().end());
      auto kept = std::make_unique<Planned<Call>>(std::move(planned));
      Entry& entry = entry_of(hash);
      entry.hash = hash;
      entry.key = std::move(words);
      entry.planned = std::move(kept);
    } catch (const std::bad_alloc&) {  // the call has run; it is planned anew when it comes again
    }
  }

 private:
  static constexpr std::size_t kEntries = 64;
  struct Entry {
    std::uint64_t hash = 0, last_seen = 0;
    std::vector<std::uint64_t> key;
    std::unique_ptr<Planned<Call>> planned;
  };
  Entry& entry_of(std::uint64_t hash) { return entries_[hash % kEntries]; }

  std::array<Entry, kEntries> entries_;
};

// The plans of this thread; null while it ends.
template <class Call>
Plans<Call>* plans() {
  thread_local bool ended = false;
  if (ended) return nullptr;
  struct Owner {
    std::unique_ptr<Plans<Call>> plans;
    ~Owner() { ended = true; }
  };
  thread_local Owner owner;
  if (!owner.plans) owner.plans.reset(new (std::nothrow) Plans<Call>);
  return owner.plans.get();
}

void set_address(ConstTensorView& view, const rootdk_tensor* given) {
  if (given) view.data = given->data;
}
void set_address(TensorView& view, const rootdk_tensor* given) {
  if (given) view.data = given->data;
}

void set_addresses(AttentionParams& to, const rootdk_attention_params& p) {
  set_address(to.kv_lengths, p.kv_lengths);
  set_address(to.mask, p.mask);
  set_address(to.q_starts, p.q_starts);
  set_address(to.kv_starts, p.kv_starts);
  set_address(to.bias, p.bias);
  set_address(to.logits.alibi_slopes, p.alibi_slopes);
  set_address(to.logits.sinks, p.sinks);
}

// Runs a call that is known, or plans it where it comes the second time. False: it goes the ordinary way.
template <class Call, class SetAddresses, class Plan>
bool run_or_plan(const Key& key, const rootdk_execution& execution, SetAddresses set_addresses, Plan plan) {
  Plans<Call>* const known = plans<Call>();
  if (!known) return false;
  const std::uint64_t hash = key.hash();
  const CudaExecution cuda{.stream = execution.stream,
                           .workspace = execution.workspace,
                           .workspace_bytes = execution.workspace_bytes,
                           .allocate = execution.allocate,
                           .allocate_user = execution.allocate_user};
  if (std::unique_ptr<Planned<Call>> planned = known->take(key, hash)) {
    set_addresses(planned->call);
    planned->call.execution.cuda = cuda;
    dispatch::run_planned(*planned);
    known->put_back(key, hash, std::move(planned));
    return true;
  }
  if (!known->is_worth_it(hash)) return false;
  Planned<Call> planned = plan();
  planned.call.execution = {.cuda = cuda};  // the rest is the caller's, and is of no use on a GPU
  dispatch::run_planned(planned);
  known->remember(key, hash, std::move(planned));
  return true;
}

bool is_apart(const rootdk_tensor* written, std::initializer_list<const rootdk_tensor*> read) {
  return !written ||
         std::none_of(read.begin(), read.end(), [&](const auto* tensor) { return tensor->data == written->data; });
}

}  // namespace

bool run_plan(const ForwardTensors& t, const rootdk_attention_params* params, const rootdk_attention_stats* stats,
              const rootdk_execution* execution) {
  if (!t.q || t.q->device_kind != ROOTDK_CUDA || !is_plain(execution)) return false;
  if (!t.k || !t.v || !t.out || !is_apart(t.out, {t.q, t.k, t.v})) return false;
  Key key;
  rootdk_attention_stats s{};
  if (stats) {
    if (!is_current(stats)) return false;
    s = *stats;
    if (s.column_mass || s.pooled_map || s.weights || s.weight_rows) return false;
  }
  if (!add_numbers(key, params)) return false;
  key.add(stats ? s.stride : 1);
  const rootdk_attention_params& p = *params;
  const std::array<const rootdk_tensor*, kForwardTensors> tensors = {
      t.q,         t.k,          t.v,       t.out,   p.kv_lengths,   p.mask,
      p.q_starts,  p.kv_starts,  p.bias,    p.sinks, p.alibi_slopes, s.lse,
      s.max_logit, s.max_weight, s.entropy, s.sum_p2};
  if (!add_tensors(key, tensors)) return false;
  const auto set = [&](ForwardCall& call) {
    set_address(call.q, t.q);
    set_address(call.k, t.k);
    set_address(call.v, t.v);
    set_address(call.out, t.out);
    set_addresses(call.params, p);
    set_address(call.stats.lse, s.lse);
    set_address(call.stats.max_logit, s.max_logit);
    set_address(call.stats.max_weight, s.max_weight);
    set_address(call.stats.entropy, s.entropy);
    set_address(call.stats.sum_p2, s.sum_p2);
  };
  return run_or_plan<ForwardCall>(key, *execution, set, [&] {
    const ConvertedExecution where(execution);
    return dispatch::plan_attention(view(t.q), view(t.k), view(t.v), view(t.out), convert(params, stats),
                                    convert(stats), where);
  });
}

bool run_plan(const BackwardTensors& t, const rootdk_attention_params* params, const rootdk_execution* execution) {
  if (!is_current(t.saved) || !is_current(t.upstream) || !is_current(t.gradients) || !is_plain(execution)) return false;
  const rootdk_attention_saved& from = *t.saved;
  const rootdk_attention_upstream& up = *t.upstream;
  const rootdk_attention_gradients& to = *t.gradients;
  if (!from.q || from.q->device_kind != ROOTDK_CUDA || !from.k || !from.v || !from.out || !up.out) return false;
  for (const rootdk_tensor* rare :
       {to.bias, to.relative_table, to.alibi_slopes, to.sinks, to.additive_v, to.column_mass}) {
    if (rare) return false;
  }
  for (const rootdk_tensor* written : {to.q, to.k, to.v}) {
    if (!is_apart(written, {from.q, from.k, from.v, from.out, up.out})) return false;
  }
  Key key;
  if (!add_numbers(key, params)) return false;
  const rootdk_attention_params& p = *params;
  const std::array<const rootdk_tensor*, kBackwardTensors> tensors = {
      from.q, from.k, from.v, from.out, from.lse,     from.entropy, up.out,     up.lse,      up.entropy,    to.q,
      to.k,   to.v,   p.bias, p.sinks,  p.kv_lengths, p.mask,       p.q_starts, p.kv_starts, p.alibi_slopes};
  if (!add_tensors(key, tensors)) return false;
  const auto set = [&](BackwardCall& call) {
    set_address(call.saved.q, from.q);
    set_address(call.saved.k, from.k);
    set_address(call.saved.v, from.v);
    set_address(call.saved.out, from.out);
    set_address(call.saved.lse, from.lse);
    set_address(call.saved.entropy, from.entropy);
    set_address(call.upstream.out, up.out);
    set_address(call.upstream.lse, up.lse);
    set_address(call.upstream.entropy, up.entropy);
    set_address(call.gradients.q, to.q);
    set_address(call.gradients.k, to.k);
    set_address(call.gradients.v, to.v);
    set_addresses(call.params, p);
  };
  return run_or_plan<BackwardCall>(key, *execution, set, [&] {
    const ConvertedExecution where(execution);
    return dispatch::plan_attention_backward(convert(t.saved), convert(t.upstream), convert(t.gradients),
                                             convert(params), where);
  });
}

}  // namespace rootdk::c_api
