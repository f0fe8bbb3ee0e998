#include "cuda/portable/inspect.h"

#include "cuda/portable/element.h"
#include "cuda/portable/inspect_kernels.h"
#include "cuda/portable/launch.h"

namespace rootdk::cuda::portable {

void launch_column_mass(const InspectArguments& args, cudaStream_t stream) {
  with_compute_type(args.q.dtype, args.rule, [&](auto type, auto additive) {
    using Compute = typename decltype(type)::Type;
    using Shape = TileShape<Compute>;
    const int columns = round_up(args.rule.head_dim, kDepthStep);
    const int tile_bytes =
        (Shape::kOwned + Shape::kStream) * pitch_of<Compute>(columns) * static_cast<int>(sizeof(Compute));
    InspectArguments placed = args;
    placed.key_blocks = (args.rule.kv_len + Shape::kOwned - 1) / Shape::kOwned;
    launch(column_mass_kernel<Compute, additive.value>, "the column mass kernel",
           {.blocks = std::int64_t{args.rule.batch} * args.rule.heads * placed.key_blocks,
            .threads = Shape::kThreads,
            .shared_bytes = tile_bytes + columns * static_cast<int>(sizeof(float)),
            .stream = stream},
           placed);
  });
}

void launch_pooled_map(const InspectArguments& args, cudaStream_t stream) {
  with_element_type(args.q.dtype, [&](auto type) {
    launch(pooled_map_kernel<typename decltype(type)::Type>, "the pooled map kernel",
           {.blocks = std::int64_t{args.rule.batch} * args.rule.heads * args.map_rows * args.map_columns,
            .threads = kRowThreads,
            .shared_bytes = kReduceSharedBytes,
            .stream = stream},
           args);
  });
}

void launch_weights(const InspectArguments& args, cudaStream_t stream) {
  with_element_type(args.q.dtype, [&](auto type) {
    launch(weights_kernel<typename decltype(type)::Type>, "the weights kernel",
           {.blocks = std::int64_t{args.tensor_batch} * args.rule.heads * args.chosen_rows,
            .threads = kRowThreads,
            .stream = stream},
           args);
  });
}

}  // namespace rootdk::cuda::portable
