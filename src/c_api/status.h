#pragma once

// Turns exceptions into a status and keeps the message for rootdk_last_error().

#include <exception>
#include <new>
#include <string>

#include "rootdk/c_api.h"
#include "rootdk/error.h"

namespace rootdk::c_api {

std::string& last_error();

template <class Body>
rootdk_status guarded(Body&& body) noexcept {
  try {
    body();
    return ROOTDK_OK;
  } catch (const Error& error) {
    last_error() = error.what();
    return ROOTDK_INVALID_ARGUMENT;
  } catch (const std::bad_alloc&) {
    last_error() = "out of memory";
    return ROOTDK_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    last_error() = error.what();
    return ROOTDK_INTERNAL_ERROR;
  }
}

}  // namespace rootdk::c_api
