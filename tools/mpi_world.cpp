#include "tools/mpi_world.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/check.h"

namespace rootdk::tools {
namespace {

bool under_mpirun() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) {
    if (std::getenv(variable)) return true;
  }
  return false;
}

// Beside the program, in the build and where it is installed; then wherever the loader finds it.
void* load_adapter() {
  namespace fs = std::filesystem;
  const std::string file = "librootdk_mpi.so";
  std::error_code error;
  const fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& path : {here / "src" / file, here.parent_path() / "lib" / file,
                               here.parent_path() / "lib" / "x86_64-linux-gnu" / file, fs::path(file)}) {
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  const char* reason = dlerror();
  fail(ErrorKind::unsupported, "mpirun has started this program, but ", file,
       " cannot be loaded: ", reason ? reason : "unknown reason");
}

}  // namespace

WorldPointer mpi_world() {
  constexpr auto kNothing = [](Transport*) {};
  if (!under_mpirun()) return {nullptr, kNothing};
  void* const library = load_adapter();
  const auto begin = reinterpret_cast<Transport* (*)()>(dlsym(library, "rootdk_mpi_world_begin"));
  const auto end = reinterpret_cast<void (*)(Transport*)>(dlsym(library, "rootdk_mpi_world_end"));
  require(begin && end, ErrorKind::unsupported, "librootdk_mpi.so is of another version");
  Transport* const world = begin();
  require(world, ErrorKind::device, "MPI does not offer MPI_THREAD_SERIALIZED");
  return {world, end};
}

}  // namespace rootdk::tools
