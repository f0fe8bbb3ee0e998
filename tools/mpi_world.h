#pragma once

#include <memory>

#include "rootdk/distributed.h"

namespace rootdk::tools {

// The ranks that mpirun has started; null where it has not. librootdk_mpi.so is loaded by name, so that the command
// line runs where there is no MPI.
using WorldPointer = std::unique_ptr<Transport, void (*)(Transport*)>;
WorldPointer mpi_world();

}  // namespace rootdk::tools
