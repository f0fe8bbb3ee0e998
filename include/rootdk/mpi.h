#pragma once

// MPI under distributed_attention(): the library rootdk_mpi, built where MPI is found (CMake: rootdk::mpi).
//
//     int level = 0;
//     MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
//     const auto transport = rootdk::mpi_transport(MPI_COMM_WORLD);

#include <mpi.h>

#include <memory>

#include "rootdk/distributed.h"

namespace rootdk {

// The ranks of a communicator, of which it makes a duplicate: every rank calls. MPI must have been started with
// MPI_THREAD_SERIALIZED or more, and end after the transport. A rank that fails leaves the others to their time-outs; a
// program whose ranks should outlive one that dies starts with mpirun --enable-recovery (Open MPI).
ROOTDK_API std::unique_ptr<Transport> mpi_transport(MPI_Comm communicator);

}  // namespace rootdk
