// For programs that load this library by name when mpirun has started them: the command line.

#include "rootdk/mpi.h"

// Starts MPI and gives the transport of all ranks; null where MPI offers too little. mpi_world_end takes it back.
extern "C" ROOTDK_API rootdk::Transport* rootdk_mpi_world_begin() {
  int level = 0;
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS) return nullptr;
  if (level < MPI_THREAD_SERIALIZED) return nullptr;
  return rootdk::mpi_transport(MPI_COMM_WORLD).release();
}

extern "C" ROOTDK_API void rootdk_mpi_world_end(rootdk::Transport* transport) {
  delete transport;
  MPI_Finalize();
}
