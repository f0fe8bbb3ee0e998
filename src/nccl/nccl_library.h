#pragma once

// NCCL's functions, found at run time. Neither its header nor its library is needed to build.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

#include "rootdk/nccl.h"

namespace rootdk::nccl {

// As nccl.h declares them; the same since NCCL 2.7.
using Result = int;                // ncclResult_t
using Communicator = void*;        // ncclComm_t
constexpr Result kSuccess = 0;     // ncclSuccess
constexpr Result kInProgress = 7;  // ncclInProgress
constexpr int kBytes = 0;          // ncclInt8

struct Library {
  Result (*get_version)(int* version) = nullptr;
  Result (*get_unique_id)(NcclId* id) = nullptr;
  Result (*comm_init_rank)(Communicator* communicator, int ranks, NcclId id, int rank) = nullptr;
  Result (*comm_destroy)(Communicator communicator) = nullptr;
  Result (*comm_abort)(Communicator communicator) = nullptr;
  Result (*comm_async_error)(Communicator communicator, Result* error) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*send)(const void* data, std::size_t count, int type, int peer, Communicator communicator,
                 cudaStream_t stream) = nullptr;
  Result (*receive)(void* data, std::size_t count, int type, int peer, Communicator communicator,
                    cudaStream_t stream) = nullptr;
  const char* (*error_string)(Result result) = nullptr;
  const char* (*last_error)(Communicator communicator) = nullptr;  // since NCCL 2.13; may be null
  std::string absence{};                                           // why there is none; empty: there is
};

// Loaded once; never throws.
const Library& library();
// Throws where there is none.
const Library& require_library(const char* operation);

}  // namespace rootdk::nccl
