#include "rootdk/error.h"

namespace rootdk {

const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument: return "invalid_argument";
    case ErrorKind::unsupported: return "unsupported";
    case ErrorKind::out_of_memory: return "out_of_memory";
    case ErrorKind::device: return "device";
    case ErrorKind::file: return "file";
    case ErrorKind::internal: return "internal";
  }
  return "unknown";
}

}  // namespace rootdk
