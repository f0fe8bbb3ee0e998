#pragma once

// DLPack's structs, and the functions that a library offers for its type of array (DLPack 1.2).

#include <cstdint>

namespace rootdk::binding {

constexpr int32_t kDLCpu = 1, kDLCuda = 2;

struct DLTensor {
  void* data;
  int32_t device_type, device_id, rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};

struct DLManagedTensor {
  uint32_t major, minor;
  void* manager;
  void (*free)(DLManagedTensor* self);
  uint64_t flags;
  DLTensor tensor;
};

using DLSetError = void (*)(void* context, const char* kind, const char* message);

struct DLPackExchange {
  uint32_t major, minor;
  const DLPackExchange* older;
  int (*allocate)(DLTensor* like, DLManagedTensor** memory, void* error_context, DLSetError set_error);
  void *managed_from_object, *object_from_managed;
  int (*describe)(void* object, DLTensor* tensor);
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

}  // namespace rootdk::binding
