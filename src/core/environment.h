#pragma once

#include <string>

namespace rootdk {

// The variables that steer the library, read once at first use.
struct Environment {
  std::string target;    // ROOTDK_TARGET: force an implementation
  bool verbose = false;  // ROOTDK_VERBOSE=1: print each choice to stderr
  int threads = 0;       // ROOTDK_THREADS: width of the default pool; 0: as many as the process may use
};

const Environment& environment();

}  // namespace rootdk
