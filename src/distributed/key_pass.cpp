// Queries travel, and what is summed over them stays with the keys, in order of query position.

#include <algorithm>
#include <cstring>

#include "distributed/backward_rows.h"

namespace rootdk::distributed {
namespace {

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
  Sums k, v, mass, bias;  // mass and bias as [batch, heads, keys, 1]
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
  if (sums.k.defined() || sums.v.defined() || sums.mass.defined()) tiles.backward(place, saved, upstream, gradients);
  const std::int64_t skip = here.before, count = keys - skip;
  if (sums.k.defined()) sums.k.add(place.batch, kv_head, here.local, count, k + skip * head_dim);
  if (sums.v.defined()) sums.v.add(place.batch, kv_head, here.local, count, v + skip * value_dim);
  if (sums.mass.defined()) sums.mass.add(place.batch, place.head, here.local, count, mass + skip);
  if (!sums.bias.defined()) return;
  const std::int64_t rows = place.queries.rows();
  const auto logits = std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(rows * keys));
  tiles.logit_gradient(place, saved, upstream, TensorView(logits.get(), {1, 1, rows, keys}));
  for (std::int64_t i = 1; i < rows; ++i) {
    for (std::int64_t j = 0; j < keys; ++j) logits[j] += logits[i * keys + j];
  }
  sums.bias.add(place.batch, place.head, here.local, count, logits.get() + skip);
}

// The gradient of a bias with one row: each rank has the sums of its keys, and all get those of all keys. Sums over
// batch entries, heads and keys, where the bias has one for all, go in order.
void share_bias(Transport& transport, const Call& call, const Tensor& own, const TensorView& gradient) {
  const AttentionShape& s = call.whole.shape;
  const auto ranks = static_cast<std::size_t>(transport.size());
  const std::size_t pairs = static_cast<std::size_t>(s.batch * s.heads);
  auto bytes_of = [&](std::size_t r) {
    return pairs * static_cast<std::size_t>(rows_of(call.distributed.keys, static_cast<int>(r))) * size_of(own.dtype());
  };
  std::vector<std::byte> sent;
  std::vector<std::size_t> send_bytes(ranks, own.bytes()), receive_bytes(ranks);
  std::size_t total = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto* data = own.view().as<std::byte>();
    sent.insert(sent.end(), data, data + own.bytes());
    total += receive_bytes[r] = bytes_of(r);
  }
  std::vector<std::byte> received(total);
  transport.all_to_all(sent.data(), send_bytes, received.data(), receive_bytes, call.distributed.timeout_seconds);

  std::vector<double> all(pairs * static_cast<std::size_t>(s.kv_len));  // [batch, heads, kv_len]
  std::size_t at = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    for (std::size_t pair = 0; pair < pairs; ++pair) {
      for (const RowRange& range : call.distributed.keys[r]) {
        for (std::int64_t j = range.begin; j < range.end; ++j, at += size_of(own.dtype())) {
          double& to = all[pair * static_cast<std::size_t>(s.kv_len) + static_cast<std::size_t>(j)];
          with_floating_type(own.dtype(), [&](auto element) {
            std::memcpy(&element, received.data() + at, sizeof element);
            to = to_double(element);
          });
        }
      }
    }
  }
  std::vector<double> summed(static_cast<std::size_t>(gradient.elements()));
  auto index = [&](std::int64_t b, std::int64_t h, std::int64_t j) {
    const std::int64_t row = (gradient.size(0) == 1 ? 0 : b) * gradient.size(1) + (gradient.size(1) == 1 ? 0 : h);
    return static_cast<std::size_t>(row * gradient.size(3) + (gradient.size(3) == 1 ? 0 : j));
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto pair = static_cast<std::int64_t>(i) / s.kv_len;
    summed[index(pair / s.heads, pair % s.heads, static_cast<std::int64_t>(i) % s.kv_len)] += all[i];
  }
  with_floating_type(gradient.dtype, [&](auto element) {
    using Element = decltype(element);
    const auto to = write<Element, 4>(gradient);
    for (std::int64_t b = 0; b < gradient.size(0); ++b)
      for (std::int64_t h = 0; h < gradient.size(1); ++h)
        for (std::int64_t j = 0; j < gradient.size(3); ++j)
          to(b, h, 0, j) = static_cast<Element>(summed[index(b, h, j)]);
  });
}

}  // namespace

void key_pass(Transport& transport, const Call& call, const Tiles& tiles, const AttentionSaved& saved,
              const AttentionUpstream& upstream, const AttentionGradients& gradients, const RowsGiven& given) {
  const int here = transport.rank();
  const Whole& whole = call.whole;
  const std::int64_t group = whole.shape.group();
  const std::vector<KeysHere> chunks = keys_here(call, here, saved);
  QueryTensors own(saved, upstream);
  own.add(call, given);
  TensorView mass = gradients.column_mass;
  if (mass.defined()) {
    mass.shape[3] = mass.strides[3] = 1;
    mass.rank = 4;
  }
  const bool bias = gradients.bias.defined() && !given.bias;
  Tensor bias_memory;
  if (bias) {
    bias_memory = Tensor(saved.q.dtype == DType::f64 ? DType::f64 : DType::f32,
                         {whole.shape.batch, whole.shape.heads, saved.k.size(2), 1});
  }
  KeySums sums{.k = Sums(gradients.k),
               .v = Sums(gradients.v),
               .mass = Sums(mass),
               .bias = Sums(bias ? bias_memory.view() : TensorView())};
  const Sight sight(whole, call.distributed.keys, Side::keys);
  Stream stream(transport, plan_stream(whole, Side::queries, call.distributed.queries, here, sight), own.all(),
                call.capacity(), call.distributed.timeout_seconds);
  stream.run([&](const Run& queries, const std::vector<ConstTensorView>& rows) {
    const RowTensors travelled = own.row_tensors(rows);
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
        const TilePlace place{.batch = b, .head = head, .queries = queries, .keys = chunk.run, .travelled = &travelled};
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
  if (bias) share_bias(transport, call, bias_memory, gradients.bias);
}

}  // namespace rootdk::distributed
