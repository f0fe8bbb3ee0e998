#include "c_api/status.h"

#include "rootdk/version.h"

namespace rootdk::c_api {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace rootdk::c_api

const char* rootdk_version(void) { return ROOTDK_VERSION_STRING; }
const char* rootdk_last_error(void) { return rootdk::c_api::last_error().c_str(); }
