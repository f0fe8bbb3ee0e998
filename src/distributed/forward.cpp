#include <limits>

#include "core/check.h"
#include "core/view_check.h"
#include "distributed/agreement.h"
#include "distributed/call.h"

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
                        const TensorView& out, AttentionParams params, const AttentionStats& stats) {
  params.kv_lengths = params.q_starts = params.kv_starts = params.mask = params.bias = ConstTensorView();
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

void check_statistics(const AttentionStats& stats, const AttentionParams& params) {
  constexpr const char* kOperation = "distributed_attention";
  require(!stats.pooled_map.defined(), ErrorKind::unsupported, kOperation,
          ": stats.pooled_map is not served across ranks");
  require(!stats.weights.defined(), ErrorKind::unsupported, kOperation, ": stats.weights is not served across ranks");
  require(params.stats.stride >= 1, kOperation, ": stats.stride ", params.stats.stride, " must be at least 1");
}

}  // namespace

std::int64_t Call::capacity() const {
  if (distributed.scheme == Scheme::gather) return std::numeric_limits<std::int32_t>::max();
  return distributed.buffers;
}

namespace {

// The cost model is asked where there is a choice.
Scheme choose_scheme(const Call& call, std::size_t element_bytes) {
  const Scheme asked = call.distributed.scheme;
  const bool all_rows = !call.params.mask.defined() && !call.params.bias.defined();
  require(asked != Scheme::heads || all_rows, ErrorKind::unsupported,
          "distributed_attention: scheme heads: a mask or a bias has the rows of this rank, and heads have all rows");
  if (asked == Scheme::ring || asked == Scheme::gather || asked == Scheme::heads) return asked;
  if (asked == Scheme::automatic && call.distributed.queries.size() == 1) return Scheme::ring;
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
                          call.distributed, call.params);
  require(explanation.error.empty(), explanation.error);
  return explanation.chosen;
}

}  // namespace

Call make_call(std::string_view operation, const Transport& transport, const ConstTensorView& q,
               const ConstTensorView& k, const ConstTensorView& v, const DistributedParams& distributed,
               const AttentionParams& params, const Execution& execution) {
  Call call{.distributed = distributed, .params = params, .execution = execution};
  if (call.distributed.keys.empty()) call.distributed.keys = distributed.queries;
  const auto ranks = static_cast<std::size_t>(transport.size());
  require(distributed.queries.size() == ranks && call.distributed.keys.size() == ranks, operation,
          ": shares of the queries for ", distributed.queries.size(), " ranks and of the keys for ",
          call.distributed.keys.size(), ", but the transport has ", ranks);
  require(q.device.kind == DeviceKind::cpu, ErrorKind::unsupported, operation,
          ": the tensors lie on a CUDA device, and only the CPU is served across ranks");
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
  const DType small = q.dtype == DType::f64 ? DType::f64 : DType::f32;
  check_row_tensor(operation, "mask", params.mask, call.whole, q, {DType::boolean});
  check_row_tensor(operation, "bias", params.bias, call.whole, q, {small, q.dtype});
  call.distributed.scheme = choose_scheme(call, size_of(q.dtype));
  return call;
}

namespace {

void attend_stream(Transport& transport, const Call& call, const Tiles& tiles, const ConstTensorView& q,
                   const ConstTensorView& k, const ConstTensorView& v, const TensorView& out,
                   const AttentionStats& stats) {
  const int here = transport.rank();
  const RowMap rows(call.distributed.queries[static_cast<std::size_t>(here)]);
  ForwardRows forward(call.whole, tiles,
                      {.q = q, .out = out, .stats = stats, .blocks = local_runs(call.whole, rows, Side::queries)},
                      call.executor());
  const Sight sight(call.whole, call.distributed.queries, Side::queries);
  Stream stream(transport, plan_stream(call.whole, Side::keys, call.distributed.keys, here, sight), {k, v},
                call.capacity(), call.distributed.timeout_seconds);
  stream.run(
      [&](const Run& keys, const std::vector<ConstTensorView>& chunk) { forward.attend(keys, chunk[0], chunk[1], 0); });
  forward.finish(call.params.logits.sinks);
}

// The mass of the keys needs the lse of whole rows: a second pass, in which the queries travel.
void column_mass(Transport& transport, const Call& call, const Tiles& tiles, const ConstTensorView& q,
                 const ConstTensorView& k, const ConstTensorView& v, const TensorView& out, const TensorView& lse,
                 const TensorView& mass) {
  AttentionSaved saved{.q = q, .k = k, .v = v, .out = out, .lse = lse};
  AttentionUpstream upstream;
  upstream.out = out;  // any values: they take no part in the weights
  AttentionGradients gradients;
  gradients.column_mass = mass;
  key_pass(transport, call, tiles, saved, upstream, gradients);
}

}  // namespace
}  // namespace distributed

void distributed_attention(Transport& transport, ConstTensorView q, ConstTensorView k, ConstTensorView v,
                           TensorView out, const DistributedParams& distributed, const AttentionParams& params,
                           const AttentionStats& stats, const Execution& execution) {
  using namespace rootdk::distributed;
  constexpr const char* kOperation = "distributed_attention";
  Call call;
  agree(kOperation, transport, distributed.timeout_seconds, [&](Request& request) {
    check_as_attention(q, k, v, out, params, stats);
    check_statistics(stats, params);
    call = make_call(kOperation, transport, q, k, v, distributed, params, execution);
    add_whole(request, call.whole, call.distributed, params, q.dtype);
    request.add("column_mass given", static_cast<std::int64_t>(stats.column_mass.defined()));
  });
  AttentionStats row_stats = stats;
  row_stats.column_mass = TensorView();
  Tensor own_lse;  // for the second pass
  if (stats.column_mass.defined() && !stats.lse.defined()) {
    own_lse = Tensor(q.dtype == DType::f64 ? DType::f64 : DType::f32, {q.size(0), q.size(1), q.size(2)});
    row_stats.lse = own_lse;
  }
  const Tiles tiles(call.whole, params, execution, q.dtype);
  if (call.distributed.scheme == Scheme::heads) {
    attend_heads(transport, call, tiles, q, k, v, out, row_stats);
  } else {
    attend_stream(transport, call, tiles, q, k, v, out, row_stats);
  }
  if (stats.column_mass.defined()) {
    column_mass(transport, call, tiles, q, k, v, out, row_stats.lse, stats.column_mass);
  }
}

}  // namespace rootdk
