#include <algorithm>
#include <limits>
#include <optional>

#include "core/check.h"
#include "core/strided.h"
#include "core/view_check.h"
#include "distributed/agreement.h"
#include "distributed/call.h"
#include "distributed/device.h"
#include "distributed/device_parts.h"

namespace rootdk {
namespace distributed {
namespace {

std::int64_t total_of(const Shares& shares) {
  std::int64_t total = 0;
  for (const auto& share : shares) {
    for (const RowRange& range : share) total += range.end - range.begin;
  }
  return total;
}

void check_rows(std::string_view operation, const char* name, const ConstTensorView& view, const Shares& shares,
                const Transport& transport) {
  const std::int64_t rows = rows_of(shares, transport.rank());
  require(view.rank == 4 && view.size(2) == rows, operation, ": ", name, " is ", describe(view), " but rank ",
          transport.rank(), " of ", transport.size(), " has ", rows, " rows of ", total_of(shares));
}

// The checks of attention() with everything that speaks of the whole left out.
void check_as_attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                        const TensorView& out, AttentionParams params, AttentionStats stats) {
  params = params_of_rank(params);
  params.stats.weight_rows = ConstTensorView();
  stats.pooled_map = stats.weights = TensorView();
  make_forward_call(q, k, v, out, params, stats, {});
}

void check_row_tensor(std::string_view operation, const char* name, const ConstTensorView& view, const Whole& whole,
                      const ConstTensorView& q, std::initializer_list<DType> types) {
  if (!view.defined()) return;
  const NamedView tensor{operation, name, view};
  require_dtype(tensor, types);
  require_broadcastable(tensor, {whole.shape.batch, whole.shape.heads, q.size(2), whole.shape.kv_len});
  require_addressable(tensor);
}

void check_output(const NamedView& tensor, DType dtype, std::initializer_list<std::int64_t> shape) {
  require_dtype(tensor, {dtype});
  require_shape(tensor, shape);
  require_device(tensor, Device{}, "the CPU");
  require_addressable(tensor);
  require_no_overlap(tensor);
}

// The map of the whole, and the weights of this rank's rows.
void check_maps(const Whole& whole, const ConstTensorView& q, const AttentionStats& stats,
                const ConstTensorView& chosen) {
  constexpr const char* kOperation = "distributed_attention";
  const DType small = q.dtype == DType::f64 ? DType::f64 : DType::f32;
  const AttentionShape& s = whole.shape;
  if (const TensorView& map = stats.pooled_map; map.defined()) {
    require(!whole.packed, kOperation, ": stats.pooled_map does not combine with packed sequences");
    const NamedView tensor{kOperation, "stats.pooled_map", map};
    require_rank(tensor, 4);
    check_output(tensor, small, {s.batch, s.heads, map.size(2), map.size(3)});
    require(map.size(2) >= 1 && map.size(3) >= 1 && map.size(2) <= std::max<std::int64_t>(1, s.q_len) &&
                map.size(3) <= std::max<std::int64_t>(1, s.kv_len),
            kOperation, ": stats.pooled_map has ", map.size(2), " x ", map.size(3), " cells for a matrix of ", s.q_len,
            " x ", s.kv_len);
  }
  require(stats.weights.defined() || !chosen.defined(), kOperation,
          ": stats.weight_rows is given but stats.weights is not");
  if (!stats.weights.defined()) return;
  if (chosen.defined()) {
    const NamedView rows{kOperation, "stats.weight_rows", chosen};
    require_rank(rows, 1);
    require_dtype(rows, {DType::i32});
    require_device(rows, Device{}, "the CPU");
    for (std::int64_t r = 0; r < chosen.size(0); ++r) {
      const std::int32_t row = read<std::int32_t, 1>(chosen)(r);
      require(row >= 0 && row < q.size(2), kOperation, ": stats.weight_rows[", r, "] is ", row, ", not a row of the ",
              q.size(2), " of this rank");
    }
  }
  check_output({kOperation, "stats.weights", stats.weights}, small,
               {s.batch, s.heads, chosen.defined() ? chosen.size(0) : q.size(2), s.kv_len});
}

}  // namespace

AttentionParams params_of_rank(AttentionParams params) {
  params.kv_lengths = params.q_starts = params.kv_starts = params.mask = params.block_mask = params.bias =
      ConstTensorView();
  return params;
}

std::int64_t Call::capacity() const {
  if (distributed.scheme == Scheme::gather) return std::numeric_limits<std::int32_t>::max();
  return distributed.buffers;
}

namespace {

// The cost model is asked where there is a choice. Fills in scheme and head_ranks.
void choose_scheme(Call& call, std::size_t element_bytes) {
  DistributedParams& distributed = call.distributed;
  const Scheme asked = distributed.scheme;
  const bool of_rows = call.params.mask.defined() || call.params.bias.defined() || call.weights_of_rows;
  require((asked != Scheme::heads && asked != Scheme::both) || !of_rows, ErrorKind::unsupported,
          "distributed_attention: scheme ", name_of(asked),
          ": a mask, a bias or weights have the rows of this rank, and heads have all rows");
  if (asked == Scheme::ring || asked == Scheme::gather || asked == Scheme::heads) return;
  if (asked == Scheme::automatic && distributed.queries.size() == 1) {
    distributed.scheme = Scheme::ring;
    return;
  }
  if (asked == Scheme::both && distributed.head_ranks > 0) return;
  const AttentionShape& shape = call.whole.shape;
  const DistributedExplanation explanation =
      explain_distributed({.batch = shape.batch,
                           .heads = shape.heads,
                           .kv_heads = shape.kv_heads,
                           .head_dim = shape.head_dim,
                           .value_dim = shape.value_dim,
                           .q_len = shape.q_len,
                           .kv_len = shape.kv_len,
                           .element_bytes = static_cast<std::int64_t>(element_bytes)},
                          distributed, call.params);
  require(explanation.error.empty(), explanation.error);
  distributed.scheme = explanation.chosen;
  distributed.head_ranks = explanation.head_ranks;
  if (!of_rows || distributed.scheme == Scheme::ring || distributed.scheme == Scheme::gather) return;
  const SchemeCost &ring = explanation.schemes[0], &gather = explanation.schemes[1];
  distributed.scheme =
      gather.total_seconds < ring.total_seconds && gather.buffer_bytes <= distributed.rates.memory_bytes
          ? Scheme::gather
          : Scheme::ring;
}

}  // namespace

Call make_call(std::string_view operation, const Transport& transport, const ConstTensorView& q,
               const ConstTensorView& k, const ConstTensorView& v, const DistributedParams& distributed,
               const AttentionParams& params, const Execution& execution, bool weights_of_rows) {
  Call call{.distributed = distributed, .params = params, .execution = execution, .weights_of_rows = weights_of_rows};
  if (call.distributed.keys.empty()) call.distributed.keys = distributed.queries;
  const auto ranks = static_cast<std::size_t>(transport.size());
  require(distributed.queries.size() == ranks && call.distributed.keys.size() == ranks, operation,
          ": shares of the queries for ", distributed.queries.size(), " ranks and of the keys for ",
          call.distributed.keys.size(), ", but the transport has ", ranks);
  check_rows(operation, "q", q, call.distributed.queries, transport);
  check_rows(operation, "k", k, call.distributed.keys, transport);
  check_rows(operation, "v", v, call.distributed.keys, transport);
  const AttentionShape shape{.batch = q.size(0),
                             .heads = q.size(1),
                             .kv_heads = k.size(1),
                             .q_len = total_of(call.distributed.queries),
                             .kv_len = total_of(call.distributed.keys),
                             .head_dim = q.size(3),
                             .value_dim = v.size(3)};
  call.whole = describe_whole(operation, shape, call.distributed, params);
  if (q.device.kind != DeviceKind::cpu) {
    const std::string reason = refuse_parts(call.whole);
    require(reason.empty(), ErrorKind::unsupported, operation, ": ", reason, " is not served across ranks on a GPU");
    call.distributed.scheme = Scheme::gather;
    return call;
  }
  const DType small = q.dtype == DType::f64 ? DType::f64 : DType::f32;
  check_row_tensor(operation, "mask", params.mask, call.whole, q, {DType::boolean});
  check_row_tensor(operation, "bias", params.bias, call.whole, q, {small, q.dtype});
  choose_scheme(call, size_of(q.dtype));
  return call;
}

void attend_stream(Transport& transport, const Call& call, const Tiles& tiles, RowsHere rows, const KeysOfHeads& keys) {
  const int here = transport.rank();
  rows.blocks = local_runs(call.whole, RowMap(call.distributed.queries[static_cast<std::size_t>(here)]), Side::queries);
  ForwardRows forward(call.whole, tiles, rows, call.executor());
  const Sight sight(call.whole, call.distributed.queries, Side::queries);
  Stream stream(transport, plan_stream(call.whole, Side::keys, call.distributed.keys, here, sight), {keys.k, keys.v},
                call.capacity(), call.distributed.timeout_seconds);
  stream.run([&](const Run& run, const std::vector<ConstTensorView>& chunk) {
    forward.attend(run, chunk[0], chunk[1], keys.first_head);
  });
  forward.finish(call.params.logits.sinks);
  if (rows.maps) rows.maps->finish(rows.blocks, rows.stats.lse, call.executor());
}

namespace {

// The mass of the keys needs the lse of whole rows: a second pass, in which the queries travel.
void column_mass(Transport& transport, const Call& call, const Tiles& tiles, const ConstTensorView& q,
                 const ConstTensorView& k, const ConstTensorView& v, const TensorView& out, const TensorView& lse,
                 const TensorView& mass) {
  AttentionSaved saved{.q = q, .k = k, .v = v, .out = out, .lse = lse};
  AttentionUpstream upstream;
  upstream.out = out;  // any values: they take no part in the weights
  AttentionGradients gradients;
  gradients.column_mass = mass;
  key_pass(transport, call, tiles, saved, upstream, gradients, agree_on_rows(transport, call, q.size(2)));
}

// Which statistics of rows are exchanged where heads are: a bit each.
std::int64_t row_statistics_given(const AttentionStats& stats) {
  const bool own_lse = stats.column_mass.defined() || WeightMaps::asked_for(stats);
  const bool given[] = {stats.lse.defined() || own_lse, stats.max_logit.defined(), stats.max_weight.defined(),
                        stats.entropy.defined(), stats.sum_p2.defined()};
  std::int64_t bits = 0;
  for (std::size_t i = 0; i < std::size(given); ++i) bits |= std::int64_t{given[i]} << i;
  return bits;
}

}  // namespace
}  // namespace distributed

void distributed_attention(Transport& transport, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                           TensorView out, const DistributedParams& distributed, const AttentionParams& params,
                           const AttentionStats& stats, const Execution& execution) {
  using namespace rootdk::distributed;
  constexpr const char* kOperation = "distributed_attention";
  Call call;
  DeviceSide device;
  agree(kOperation, transport, distributed.timeout_seconds, [&](Request& request) {
    check_as_attention(q, k, v, out, params, stats);
    AttentionParams of_call = params;
    device = device_side(kOperation, q, distributed, stats, {}, execution, of_call);
    call = make_call(kOperation, transport, q, k, v, distributed, of_call, execution, stats.weights.defined());
    check_maps(call.whole, q, stats, params.stats.weight_rows);
    add_whole(request, call.whole, call.distributed, of_call, q.dtype);
    request.add("on a GPU", static_cast<std::int64_t>(device.queue != nullptr));
    request.add("column_mass given", static_cast<std::int64_t>(stats.column_mass.defined()));
    request.add("weights given", static_cast<std::int64_t>(stats.weights.defined()));
    request.add("pooled_map rows", stats.pooled_map.defined() ? stats.pooled_map.size(2) : 0);
    request.add("pooled_map columns", stats.pooled_map.defined() ? stats.pooled_map.size(3) : 0);
    if (call.distributed.scheme == Scheme::heads || call.distributed.scheme == Scheme::both) {
      request.add("row statistics (bits)", row_statistics_given(stats));
    }
  });
  if (device.queue) return attend_on_device(transport, call, *device.queue, q, k, v, out, stats);
  AttentionStats row_stats = stats;
  row_stats.column_mass = TensorView();
  Tensor own_lse;  // for what needs the lse of whole rows
  if ((stats.column_mass.defined() || WeightMaps::asked_for(stats)) && !stats.lse.defined()) {
    own_lse = Tensor(q.dtype == DType::f64 ? DType::f64 : DType::f32, {q.size(0), q.size(1), q.size(2)});
    row_stats.lse = own_lse;
  }
  const Tiles tiles(call.whole, params, execution, q.dtype);
  if (call.distributed.scheme == Scheme::heads || call.distributed.scheme == Scheme::both) {
    attend_heads(transport, call, tiles, q, k, v, out, row_stats);
  } else {
    std::optional<WeightMaps> maps;
    if (WeightMaps::asked_for(stats)) maps.emplace(call.whole, tiles, q, 0, stats, params.stats.weight_rows);
    attend_stream(transport, call, tiles, {.q = q, .out = out, .stats = row_stats, .maps = maps ? &*maps : nullptr},
                  {.k = k, .v = v});
    if (maps) maps->share(transport, call.distributed.timeout_seconds);
  }
  if (stats.column_mass.defined()) {
    column_mass(transport, call, tiles, q, k, v, out, row_stats.lse, stats.column_mass);
  }
}

}  // namespace rootdk
