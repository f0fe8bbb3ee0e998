#include "c_api/status.h"

#include <string>

#include "rootdk/version.h"

namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

}  // namespace

const char* rootdk_version(void) { return ROOTDK_VERSION_STRING; }
const char* rootdk_last_error(void) { return last_error().c_str(); }
void rootdk_set_last_error(const char* message) { last_error() = message ? message : ""; }
