// Gradients in two passes. Keys travel and the gradient of q is summed in order of key position; then queries travel
// and the gradients of k and v are summed in order of query position.

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/check.h"
#include "core/strided.h"
#include "distributed/agreement.h"
#include "distributed/call.h"
#include "distributed/exact_sum.h"

namespace rootdk {
namespace distributed {
namespace {

// [batch, heads, rows] as [batch, heads, rows, 1] and back.
ConstTensorView with_width(ConstTensorView view) {
  view.shape[3] = view.strides[3] = 1;
  view.rank = 4;
  return view;
}
ConstTensorView without_width(ConstTensorView view) {
  view.rank = 3;
  return view;
}

// A gradient summed in f32 (f64 beside f64), in the caller's memory where that has the type.
class Sums {
 public:
  explicit Sums(const TensorView& result) : result_(result) {
    if (!result.defined()) return;
    if (size_of(result.dtype) == 2) memory_ = Tensor(DType::f32, std::span(result.shape).first(4));
    clear();
  }
  bool defined() const { return result_.defined(); }
  TensorView view() { return memory_.defined() ? memory_.view() : result_; }

  template <class T>
  void add(std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t rows, const T* values) {
    const auto to = write<T, 4>(view());
    const std::int64_t width = result_.size(3);
    for (std::int64_t i = 0; i < rows; ++i) {
      T* row = to.at(b, h, first + i, 0);
      for (std::int64_t d = 0; d < width; ++d) row[d] += values[i * width + d];
    }
  }

  void round() {
    if (!memory_.defined()) return;
    const auto from = read<float, 4>(memory_.view());
    with_floating_type(result_.dtype, [&](auto element) {
      using Element = decltype(element);
      const auto to = write<Element, 4>(result_);
      each([&](auto... index) { to(index...) = static_cast<Element>(from(index...)); });
    });
  }

 private:
  template <class Body>
  void each(Body body) {
    for (std::int64_t b = 0; b < result_.size(0); ++b)
      for (std::int64_t h = 0; h < result_.size(1); ++h)
        for (std::int64_t i = 0; i < result_.size(2); ++i)
          for (std::int64_t d = 0; d < result_.size(3); ++d) body(b, h, i, d);
  }
  void clear() {
    with_floating_type(view().dtype, [&](auto element) {
      using Element = decltype(element);
      const auto to = write<Element, 4>(view());
      each([&](auto... index) { to(index...) = Element{}; });
    });
  }

  TensorView result_;
  Tensor memory_;
};

ConstTensorView rows_of_head(const ConstTensorView& view, std::int64_t b, std::int64_t h, std::int64_t first,
                             std::int64_t rows) {
  return head_of(view, b, h).slice(2, first, first + rows);
}

// Everything that belongs to query rows and goes with them, in one order.
struct QueryTensors {
  std::vector<ConstTensorView> all{};  // q, out, grad out, lse, then those that are given of the last three
  bool entropy = false, grad_lse = false, grad_entropy = false;

  QueryTensors(const AttentionSaved& saved, const AttentionUpstream& upstream)
      : all{saved.q, saved.out, upstream.out, with_width(saved.lse)},
        entropy(saved.entropy.defined() && upstream.entropy.defined()),
        grad_lse(upstream.lse.defined()),
        grad_entropy(upstream.entropy.defined()) {
    if (entropy) all.push_back(with_width(saved.entropy));
    if (grad_lse) all.push_back(with_width(upstream.lse));
    if (grad_entropy) all.push_back(with_width(upstream.entropy));
  }

  // The same for some rows of a head of tensors in the order of `all`.
  void set(const std::vector<ConstTensorView>& tensors, std::int64_t b, std::int64_t h, std::int64_t first,
           std::int64_t rows, AttentionSaved& saved, AttentionUpstream& upstream) const {
    auto view = [&](std::size_t i) { return rows_of_head(tensors[i], b, h, first, rows); };
    saved.q = view(0);
    saved.out = view(1);
    upstream.out = view(2);
    saved.lse = without_width(view(3));
    std::size_t next = 4;
    if (entropy) saved.entropy = without_width(view(next++));
    if (grad_lse) upstream.lse = without_width(view(next++));
    if (grad_entropy) upstream.entropy = without_width(view(next++));
  }
};

template <class T>
void query_tile(const Tiles& tiles, const TilePlace& place, const AttentionSaved& saved,
                const AttentionUpstream& upstream, Sums& sums) {
  const std::int64_t rows = place.queries.rows(), width = saved.q.size(3);
  const auto memory = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(rows * width));
  AttentionGradients gradients;
  gradients.q = TensorView(memory.get(), {1, 1, rows, width});
  tiles.backward(place, saved, upstream, gradients);
  sums.add(place.batch, place.head, place.local_query, rows, memory.get());
}

// The gradient of q: keys travel.
void query_pass(Transport& transport, const Call& call, const Tiles& tiles, const AttentionSaved& saved,
                const AttentionUpstream& upstream, const TensorView& gradient) {
  const int here = transport.rank();
  const Whole& whole = call.whole;
  const std::vector<LocalRun> blocks =
      local_runs(whole, RowMap(call.distributed.queries[static_cast<std::size_t>(here)]), Side::queries);
  const QueryTensors own(saved, upstream);
  Sums sums(gradient);
  const Sight sight(whole, call.distributed.queries, Side::queries);
  Stream stream(transport, plan_stream(whole, Side::keys, call.distributed.keys, here, sight), {saved.k, saved.v},
                call.capacity(), call.distributed.timeout_seconds);
  stream.run([&](const Run& keys, const std::vector<ConstTensorView>& chunk) {
    std::vector<const LocalRun*> seeing;
    for (const LocalRun& block : blocks) {
      if (whole.sees(block.run, keys)) seeing.push_back(&block);
    }
    const auto count = static_cast<std::int64_t>(seeing.size());
    call.executor().parallel_for(whole.shape.batch * whole.shape.heads * count, [&](std::int64_t task) {
      const LocalRun& block = *seeing[static_cast<std::size_t>(task % count)];
      const TilePlace place{.batch = task / count / whole.shape.heads,
                            .head = task / count % whole.shape.heads,
                            .queries = block.run,
                            .keys = keys,
                            .local_query = block.local};
      if (tiles.visible(place) == 0) return;
      AttentionSaved tile;
      AttentionUpstream above;
      own.set(own.all, place.batch, place.head, block.local, block.run.rows(), tile, above);
      const std::int64_t kv_head = place.head / whole.shape.group();
      tile.k = head_of(chunk[0], place.batch, kv_head);
      tile.v = head_of(chunk[1], place.batch, kv_head);
      if (saved.q.dtype == DType::f64) {
        query_tile<double>(tiles, place, tile, above, sums);
      } else {
        query_tile<float>(tiles, place, tile, above, sums);
      }
    });
  });
  sums.round();
}

// Keys of a chunk that lie here, as tiles take them. Dropout bits belong to eight keys: where the keys here begin
// inside such a group, keys of zeros go before them.
struct KeysHere {
  Run run{};                 // from a multiple of 8 on
  std::int64_t before = 0;   // keys of zeros
  std::int64_t local = 0;    // row of the first key that is here
  ConstTensorView k{}, v{};  // [batch, kv_heads, keys of the run, width]
  Tensor k_memory{}, v_memory{};
};

Tensor with_zeros_before(const ConstTensorView& view, std::int64_t zeros) {
  Tensor copy(view.dtype, {view.size(0), view.size(1), zeros + view.size(2), view.size(3)});
  with_floating_type(view.dtype, [&](auto element) {
    using Element = decltype(element);
    const auto from = read<Element, 4>(view);
    const auto to = write<Element, 4>(copy.view());
    for (std::int64_t b = 0; b < view.size(0); ++b) {
      for (std::int64_t h = 0; h < view.size(1); ++h) {
        for (std::int64_t i = 0; i < view.size(2); ++i) {
          std::copy_n(from.at(b, h, i, 0), view.size(3), to.at(b, h, zeros + i, 0));
        }
      }
    }
  });
  return copy;
}

std::vector<KeysHere> keys_here(const Call& call, int rank, const AttentionSaved& saved) {
  std::vector<KeysHere> all;
  const RowMap rows(call.distributed.keys[static_cast<std::size_t>(rank)]);
  for (const LocalRun& local : local_runs(call.whole, rows, Side::keys)) {
    KeysHere here{.run = local.run, .local = local.local};
    here.k = saved.k.slice(2, local.local, local.local + local.run.rows());
    here.v = saved.v.slice(2, local.local, local.local + local.run.rows());
    if (call.params.dropout > 0 && local.run.begin % 8 != 0) {
      here.before = local.run.begin % 8;
      here.run.begin -= here.before;
      here.k_memory = with_zeros_before(here.k, here.before);
      here.v_memory = with_zeros_before(here.v, here.before);
      here.k = here.k_memory;
      here.v = here.v_memory;
    }
    all.push_back(std::move(here));
  }
  return all;
}

struct KeySums {
  Sums k, v, mass;  // mass as [batch, heads, keys, 1]
};

template <class T>
void key_tile(const Tiles& tiles, const TilePlace& place, const KeysHere& here, std::int64_t kv_head,
              const AttentionSaved& saved, const AttentionUpstream& upstream, KeySums& sums) {
  const std::int64_t keys = tiles.visible(place), head_dim = saved.k.size(3), value_dim = saved.v.size(3);
  const auto memory = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(keys * (head_dim + value_dim + 1)));
  T *const k = memory.get(), *const v = k + keys * head_dim, *const mass = v + keys * value_dim;
  AttentionGradients gradients;
  if (sums.k.defined()) gradients.k = TensorView(k, {1, 1, keys, head_dim});
  if (sums.v.defined()) gradients.v = TensorView(v, {1, 1, keys, value_dim});
  if (sums.mass.defined()) gradients.column_mass = TensorView(mass, {1, 1, keys});
  tiles.backward(place, saved, upstream, gradients);
  const std::int64_t skip = here.before, count = keys - skip;
  if (sums.k.defined()) sums.k.add(place.batch, kv_head, here.local, count, k + skip * head_dim);
  if (sums.v.defined()) sums.v.add(place.batch, kv_head, here.local, count, v + skip * value_dim);
  if (sums.mass.defined()) sums.mass.add(place.batch, place.head, here.local, count, mass + skip);
}

// p_sink (g_lse - D + g_entropy (1 - p_sink - H)) over the rows here of each head.
template <class Element>
void add_sink_terms(const Call& call, const AttentionSaved& saved, const AttentionUpstream& upstream,
                    std::vector<ExactSum>& sums) {
  using Small = std::conditional_t<std::is_same_v<Element, double>, double, float>;
  const AttentionShape& s = call.whole.shape;
  const auto out = read<Element, 4>(saved.out), grad_out = read<Element, 4>(upstream.out);
  const auto lse = read<Small, 3>(saved.lse);
  const auto sink = read<Small, 1>(call.params.logits.sinks);
  auto optional = [](const ConstTensorView& view) {
    return view.defined() ? read<Small, 3>(view) : Strided<const Small, 3>();
  };
  const auto entropy = optional(saved.entropy), grad_lse = optional(upstream.lse),
             grad_entropy = optional(upstream.entropy);
  call.executor().parallel_for(s.heads, [&](std::int64_t h) {
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t i = 0; i < saved.q.size(2); ++i) {
        if (lse(b, h, i) == -std::numeric_limits<Small>::infinity()) continue;
        const double p_sink = std::exp(static_cast<double>(sink(h)) - lse(b, h, i));
        double inner = 0;
        for (std::int64_t d = 0; d < s.value_dim; ++d) {
          inner -= to_double(grad_out(b, h, i, d)) * to_double(out(b, h, i, d));
        }
        if (grad_lse) inner += grad_lse(b, h, i);
        if (grad_entropy) inner += grad_entropy(b, h, i) * (1 - p_sink - entropy(b, h, i));
        sums[static_cast<std::size_t>(h)].add(p_sink * inner);
      }
    }
  });
}

void sink_gradient(Transport& transport, const Call& call, const AttentionSaved& saved,
                   const AttentionUpstream& upstream, const TensorView& gradient) {
  std::vector<ExactSum> sums(static_cast<std::size_t>(call.whole.shape.heads));
  with_floating_type(saved.q.dtype,
                     [&](auto element) { add_sink_terms<decltype(element)>(call, saved, upstream, sums); });
  const auto ranks = static_cast<std::size_t>(transport.size());
  std::vector<ExactSum> sent;
  for (std::size_t r = 0; r < ranks; ++r) sent.insert(sent.end(), sums.begin(), sums.end());
  std::vector<ExactSum> all(sent.size());
  const std::vector<std::size_t> bytes(ranks, sums.size() * sizeof(ExactSum));
  transport.all_to_all(sent.data(), bytes, all.data(), bytes, call.distributed.timeout_seconds);
  for (std::size_t h = 0; h < sums.size(); ++h) {
    ExactSum sum;
    for (std::size_t r = 0; r < ranks; ++r) sum.add(all[r * sums.size() + h]);
    if (gradient.dtype == DType::f64) {
      write<double, 1>(gradient)(h) = sum.value();
    } else {
      write<float, 1>(gradient)(h) = static_cast<float>(sum.value());
    }
  }
}

void check_gradients(const AttentionGradients& gradients) {
  constexpr const char* kOperation = "distributed_attention_backward";
  for (const auto& [name, view] :
       {std::pair{"bias", gradients.bias}, std::pair{"relative_table", gradients.relative_table},
        std::pair{"alibi_slopes", gradients.alibi_slopes}, std::pair{"additive_v", gradients.additive_v}}) {
    require(!view.defined(), ErrorKind::unsupported, kOperation, ": gradients.", name, " is not served across ranks");
  }
}

void check_as_backward(const AttentionSaved& saved, const AttentionUpstream& upstream,
                       const AttentionGradients& gradients, AttentionParams params) {
  params.kv_lengths = params.q_starts = params.kv_starts = params.mask = params.bias = ConstTensorView();
  make_backward_call(saved, upstream, gradients, params, {});
}

}  // namespace

void key_pass(Transport& transport, const Call& call, const Tiles& tiles, const AttentionSaved& saved,
              const AttentionUpstream& upstream, const AttentionGradients& gradients) {
  const int here = transport.rank();
  const Whole& whole = call.whole;
  const std::int64_t group = whole.shape.group();
  const std::vector<KeysHere> chunks = keys_here(call, here, saved);
  const QueryTensors own(saved, upstream);
  TensorView mass = gradients.column_mass;
  if (mass.defined()) {
    mass.shape[3] = mass.strides[3] = 1;
    mass.rank = 4;
  }
  KeySums sums{.k = Sums(gradients.k), .v = Sums(gradients.v), .mass = Sums(mass)};
  const Sight sight(whole, call.distributed.keys, Side::keys);
  Stream stream(transport, plan_stream(whole, Side::queries, call.distributed.queries, here, sight), own.all,
                call.capacity(), call.distributed.timeout_seconds);
  stream.run([&](const Run& queries, const std::vector<ConstTensorView>& rows) {
    std::vector<const KeysHere*> seen;
    for (const KeysHere& chunk : chunks) {
      if (whole.sees(queries, chunk.run)) seen.push_back(&chunk);
    }
    const auto count = static_cast<std::int64_t>(seen.size());
    call.executor().parallel_for(whole.shape.batch * whole.shape.kv_heads * count, [&](std::int64_t task) {
      const KeysHere& chunk = *seen[static_cast<std::size_t>(task % count)];
      const std::int64_t b = task / count / whole.shape.kv_heads, kv_head = task / count % whole.shape.kv_heads;
      AttentionSaved tile;
      AttentionUpstream above;
      tile.k = head_of(chunk.k, b, kv_head);
      tile.v = head_of(chunk.v, b, kv_head);
      for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const TilePlace place{.batch = b, .head = head, .queries = queries, .keys = chunk.run};
        if (tiles.visible(place) <= chunk.before) continue;
        own.set(rows, b, head, 0, queries.rows(), tile, above);
        if (saved.q.dtype == DType::f64) {
          key_tile<double>(tiles, place, chunk, kv_head, tile, above, sums);
        } else {
          key_tile<float>(tiles, place, chunk, kv_head, tile, above, sums);
        }
      }
    });
  });
  sums.k.round();
  sums.v.round();
}

}  // namespace distributed

void distributed_attention_backward(Transport& transport, const AttentionSaved& saved,
                                    const AttentionUpstream& upstream, const AttentionGradients& gradients,
                                    const DistributedParams& distributed, const AttentionParams& params,
                                    const Execution& execution) {
  using namespace rootdk::distributed;
  constexpr const char* kOperation = "distributed_attention_backward";
  Call call;
  agree(kOperation, transport, distributed.timeout_seconds, [&](Request& request) {
    check_as_backward(saved, upstream, gradients, params);
    check_gradients(gradients);
    call = make_call(kOperation, transport, saved.q, saved.k, saved.v, distributed, params, execution);
    const bool keys = gradients.k.defined() || gradients.v.defined() || gradients.column_mass.defined();
    require(!keys || !(params.mask.defined() || params.bias.defined()), ErrorKind::unsupported, kOperation,
            ": gradients of k and v are not served across ranks where a mask or a bias is given");
    add_whole(request, call.whole, call.distributed, params, saved.q.dtype);
    request.add("gradients.q given", static_cast<std::int64_t>(gradients.q.defined()));
    request.add("gradients.k or v given", static_cast<std::int64_t>(keys));
    request.add("gradients.sinks given", static_cast<std::int64_t>(gradients.sinks.defined()));
    request.add("upstream.lse given", static_cast<std::int64_t>(upstream.lse.defined()));
    request.add("upstream.entropy given", static_cast<std::int64_t>(upstream.entropy.defined()));
  });
  const Tiles tiles(call.whole, params, execution, saved.q.dtype);
  if (gradients.q.defined()) query_pass(transport, call, tiles, saved, upstream, gradients.q);
  if (gradients.k.defined() || gradients.v.defined() || gradients.column_mass.defined()) {
    key_pass(transport, call, tiles, saved, upstream, gradients);
  }
  if (gradients.sinks.defined()) sink_gradient(transport, call, saved, upstream, gradients.sinks);
}

}  // namespace rootdk
