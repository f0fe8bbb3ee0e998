#pragma once

// NCCL under distributed_attention() for CUDA tensors: the library rootdk_nccl, built wherever the CUDA kernels are
// (CMake: rootdk::nccl). NCCL itself, libnccl.so.2, is loaded when one of these functions is first called: the one that
// the environment variable ROOTDK_NCCL_LIBRARY names, or that the process has loaded already (PyTorch's), or that the
// loader finds.
//
//     const auto host = rootdk::mpi_transport(MPI_COMM_WORLD);
//     const auto transport = rootdk::nccl_transport(*host, device);

#include <array>
#include <memory>
#include <string>

#include "rootdk/distributed.h"

namespace rootdk {

// ncclUniqueId
struct NcclId {
  std::array<char, 128> bytes{};
};

// Why NCCL cannot be used here, and what to do about it; empty: it can.
ROOTDK_API std::string nccl_absence();

// Rows of tensors go from device to device by NCCL, everything else goes over `host`, which must live longer. Every
// rank of `host` calls, each with a device of its own, and they wait for each other. NCCL refuses two ranks on one
// device.
ROOTDK_API std::unique_ptr<Transport> nccl_transport(Transport& host, int device);

// The same without another transport: one rank makes an id, and the program carries it to the others. Such a group
// serves calls on CUDA tensors alone.
ROOTDK_API NcclId make_nccl_id();
ROOTDK_API std::unique_ptr<Transport> nccl_transport(const NcclId& id, int rank, int size, int device);

}  // namespace rootdk
