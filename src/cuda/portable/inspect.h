#pragma once

// Statistics that need the finished lse, each launched where its view is given.

#include <cuda_runtime_api.h>

#include "cuda/portable/arguments.h"

namespace rootdk::cuda::portable {

struct InspectArguments {
  LogitRule rule;
  Matrix q, k;
  DeviceView<const float, 3> lse;
  int key_blocks = 0;

  DeviceView<float, 3> column_mass;
  DeviceView<float, 4> pooled_map;
  int map_rows = 0, map_columns = 0;
  DeviceView<float, 4> weights;
  DeviceView<const int, 1> weight_rows;  // null: all rows
  int tensor_batch = 0, chosen_rows = 0, weight_keys = 0;
};

void launch_column_mass(const InspectArguments& args, cudaStream_t stream);
void launch_pooled_map(const InspectArguments& args, cudaStream_t stream);
void launch_weights(const InspectArguments& args, cudaStream_t stream);

}  // namespace rootdk::cuda::portable
