#pragma once

// Turns exceptions into a status and keeps the message for rootdk_last_error().

#include <exception>

#include "core/out_of_memory.h"
#include "rootdk/c_api.h"
#include "rootdk/error.h"

namespace rootdk::c_api {

constexpr rootdk_status status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument: return ROOTDK_INVALID_ARGUMENT;
    case ErrorKind::unsupported: return ROOTDK_UNSUPPORTED;
    case ErrorKind::out_of_memory: return ROOTDK_OUT_OF_MEMORY;
    case ErrorKind::device: return ROOTDK_DEVICE_ERROR;
    case ErrorKind::file: return ROOTDK_FILE_ERROR;
    case ErrorKind::internal: return ROOTDK_INTERNAL_ERROR;
  }
  return ROOTDK_INTERNAL_ERROR;
}

template <class Body>
rootdk_status guarded(Body&& body) noexcept {
  try {
    body();
    return ROOTDK_OK;
  } catch (const Error& error) {
    rootdk_set_last_error(error.what());
    return status_of(error.kind());
  } catch (const std::bad_alloc& error) {
    rootdk_set_last_error(message_of(error));
    return ROOTDK_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    rootdk_set_last_error(error.what());
    return ROOTDK_INTERNAL_ERROR;
  } catch (...) {  // of a caller's thread pool
    rootdk_set_last_error("an exception of unknown type");
    return ROOTDK_INTERNAL_ERROR;
  }
}

}  // namespace rootdk::c_api
