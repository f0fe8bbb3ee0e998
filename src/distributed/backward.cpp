// Gradients in two passes. Keys travel and the gradient of q is summed in order of key position; then queries travel
// and the gradients of k and v are summed in order of query position (key_pass.cpp).

#include <algorithm>

#include "core/check.h"
#include "core/view_check.h"
#include "distributed/agreement.h"
#include "distributed/device.h"
#include "distributed/logit_gradients.h"

namespace rootdk {
namespace distributed {
namespace {

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

// The gradients of q and of what makes the logits: keys travel.
void query_pass(Transport& transport, const Call& call, const Tiles& tiles, const AttentionSaved& saved,
                const AttentionUpstream& upstream, const TensorView& gradient, LogitGradients& logits) {
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
    auto tile_of = [&](const TilePlace& place, AttentionSaved& tile, AttentionUpstream& above) {
      own.set(own.all(), place.batch, place.head, place.local_query, place.queries.rows(), tile, above);
      const std::int64_t kv_head = place.head / whole.shape.group();
      tile.k = head_of(chunk[0], place.batch, kv_head);
      tile.v = head_of(chunk[1], place.batch, kv_head);
    };
    const auto count = static_cast<std::int64_t>(seeing.size());
    if (gradient.defined()) {
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
        tile_of(place, tile, above);
        if (saved.q.dtype == DType::f64) {
          query_tile<double>(tiles, place, tile, above, sums);
        } else {
          query_tile<float>(tiles, place, tile, above, sums);
        }
      });
    }
    if (logits.wanted()) logits.add(keys, seeing, tile_of);
  });
  sums.round();
}

void check_bias_gradient(const char* operation, const ConstTensorView& bias, const TensorView& gradient) {
  if (!gradient.defined()) return;
  require(bias.defined(), operation, ": gradients.bias is asked for but bias is not given");
  const NamedView tensor{operation, "gradients.bias", gradient};
  require_rank(tensor, 4);
  require_shape(tensor, {bias.size(0), bias.size(1), bias.size(2), bias.size(3)});
  require_dtype(tensor, {bias.dtype, bias.dtype == DType::f64 ? DType::f64 : DType::f32});
  require_device(tensor, Device{}, "the CPU");
  require_addressable(tensor);
  require_no_overlap(tensor);
}

void check_as_backward(const AttentionSaved& saved, const AttentionUpstream& upstream, AttentionGradients gradients,
                       const AttentionParams& params) {
  gradients.bias = TensorView();
  make_backward_call(saved, upstream, gradients, params_of_rank(params), {});
}

}  // namespace
}  // namespace distributed

void distributed_attention_backward(Transport& transport, const AttentionSaved& saved,
                                    const AttentionUpstream& upstream, const AttentionGradients& gradients,
                                    const DistributedParams& distributed, const AttentionParams& params,
                                    const Execution& execution) {
  using namespace rootdk::distributed;
  constexpr const char* kOperation = "distributed_attention_backward";
  Call call;
  DeviceSide device;
  const bool keys = gradients.k.defined() || gradients.v.defined() || gradients.column_mass.defined();
  agree(kOperation, transport, distributed.timeout_seconds, [&](Request& request) {
    check_as_backward(saved, upstream, gradients, params);
    AttentionParams of_call = params;
    device = device_side(kOperation, saved.q, distributed, {}, gradients, execution, of_call);
    call = make_call(kOperation, transport, saved.q, saved.k, saved.v, distributed, of_call, execution);
    check_bias_gradient(kOperation, params.bias, gradients.bias);
    add_whole(request, call.whole, call.distributed, of_call, saved.q.dtype);
    request.add("on a GPU", static_cast<std::int64_t>(device.queue != nullptr));
    request.add("gradients.q given", static_cast<std::int64_t>(gradients.q.defined()));
    request.add("gradients.k or v given", static_cast<std::int64_t>(keys));
    if (device.queue) {  // they travel together
      request.add("gradients.k given", static_cast<std::int64_t>(gradients.k.defined()));
      request.add("gradients.v given", static_cast<std::int64_t>(gradients.v.defined()));
    }
    request.add("gradients.bias given", static_cast<std::int64_t>(gradients.bias.defined()));
    request.add("gradients.table given", static_cast<std::int64_t>(gradients.relative_table.defined()));
    request.add("gradients.alibi given", static_cast<std::int64_t>(gradients.alibi_slopes.defined()));
    request.add("gradients.additive given", static_cast<std::int64_t>(gradients.additive_v.defined()));
    request.add("gradients.sinks given", static_cast<std::int64_t>(gradients.sinks.defined()));
    request.add("upstream.lse given", static_cast<std::int64_t>(upstream.lse.defined()));
    request.add("upstream.entropy given", static_cast<std::int64_t>(upstream.entropy.defined()));
  });
  if (device.queue) return backward_on_device(transport, call, *device.queue, saved, upstream, gradients);
  const RowsGiven given = agree_on_rows(transport, call, saved.q.size(2));
  const Tiles tiles(call.whole, params, execution, saved.q.dtype);
  LogitGradients logits(call, tiles, gradients, given);
  if (gradients.q.defined() || logits.wanted()) {
    query_pass(transport, call, tiles, saved, upstream, gradients.q, logits);
    logits.finish(transport);
  }
  if (keys || (gradients.bias.defined() && !given.bias)) {
    key_pass(transport, call, tiles, saved, upstream, gradients, given);
  }
  if (gradients.sinks.defined()) sink_gradient(transport, call, saved, upstream, gradients.sinks);
}

}  // namespace rootdk
