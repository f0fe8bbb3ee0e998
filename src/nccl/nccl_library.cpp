#include "nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "rootdk/error.h"

namespace rootdk::nccl {
namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr const char* kVariable = "ROOTDK_NCCL_LIBRARY";
constexpr int kOldest = 2700;  // 2.7, the first with send and receive; later versions count as 21000 + ...

std::string last_failure() {
  const char* text = dlerror();
  return text ? text : "no reason given";
}

void* open(std::string& absence) {
  if (const char* path = std::getenv(kVariable); path && *path) {
    void* const handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) absence = std::string(kVariable) + " is " + path + ", which cannot be loaded: " + last_failure();
    return handle;
  }
  if (void* const loaded = dlopen(kName, RTLD_NOW | RTLD_NOLOAD)) return loaded;
  if (void* const found = dlopen(kName, RTLD_NOW | RTLD_LOCAL)) return found;
  absence = std::string(kName) + " cannot be loaded: " + last_failure() +
            ". Install NCCL (libnccl2 of NVIDIA's archive), or set " + kVariable +
            " to the one that PyTorch brings along (site-packages/nvidia/nccl/lib/" + kName + ")";
  return nullptr;
}

template <class Function>
void find(void* handle, const char* name, Function& function, std::string& absence) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (!function && absence.empty()) absence = std::string(kName) + " lacks " + name + ": " + last_failure();
}

Library load() {
  Library found;
  void* const handle = open(found.absence);
  if (!handle) return found;
  std::string& absence = found.absence;
  find(handle, "ncclGetVersion", found.get_version, absence);
  find(handle, "ncclGetUniqueId", found.get_unique_id, absence);
  find(handle, "ncclCommInitRank", found.comm_init_rank, absence);
  find(handle, "ncclCommDestroy", found.comm_destroy, absence);
  find(handle, "ncclCommAbort", found.comm_abort, absence);
  find(handle, "ncclCommGetAsyncError", found.comm_async_error, absence);
  find(handle, "ncclGroupStart", found.group_start, absence);
  find(handle, "ncclGroupEnd", found.group_end, absence);
  find(handle, "ncclSend", found.send, absence);
  find(handle, "ncclRecv", found.receive, absence);
  find(handle, "ncclGetErrorString", found.error_string, absence);
  std::string none_is_fine;
  find(handle, "ncclGetLastError", found.last_error, none_is_fine);
  int version = 0;
  if (absence.empty() && (found.get_version(&version) != kSuccess || version < kOldest)) {
    absence = std::string(kName) + " has version " + std::to_string(version) + ", and 2.7 (2700) or newer is needed";
  }
  return found;
}

}  // namespace

const Library& library() {
  static const Library& found = *new Library(load());
  return found;
}

const Library& require_library(const char* operation) {
  const Library& found = library();
  if (!found.absence.empty()) throw Error(ErrorKind::unsupported, std::string(operation) + ": " + found.absence);
  return found;
}

}  // namespace rootdk::nccl
