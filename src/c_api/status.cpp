#include "c_api/status.h"

#include <cstring>

#include "rootdk/version.h"

namespace {

// Of fixed size, so that running out of memory can be reported without any. Longer messages lose their end.
thread_local char last_error[4096] = "";
constexpr std::size_t kRoom = sizeof last_error - 1;

}  // namespace

const char* rootdk_version(void) { return ROOTDK_VERSION_STRING; }
const char* rootdk_last_error(void) { return last_error; }
void rootdk_set_last_error(const char* message) {
  if (!message) message = "";
  std::size_t length = strnlen(message, kRoom + 1);
  if (length > kRoom) {
    // Not in the middle of a UTF-8 character.
    for (length = kRoom; length > 0 && (message[length] & 0xC0) == 0x80;) --length;
  }
  std::memmove(last_error, message, length);  // it may be the last error itself
  last_error[length] = '\0';
}
