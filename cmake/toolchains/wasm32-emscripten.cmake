# Compiles for WebAssembly with SIMD128 by Debian's emscripten, and runs the tests under node:
#   cmake -B build-wasm -G Ninja --toolchain cmake/toolchains/wasm32-emscripten.cmake -DROOTDK_CUDA=OFF
# One thread: threads in a browser need headers that a page opened from a file does not get.
set(EMSCRIPTEN_SYSTEM_PROCESSOR wasm32)
find_path(ROOTDK_EMSCRIPTEN cmake/Modules/Platform/Emscripten.cmake
  PATHS $ENV{EMSDK}/upstream/emscripten /usr/share/emscripten NO_CMAKE_FIND_ROOT_PATH REQUIRED)
include(${ROOTDK_EMSCRIPTEN}/cmake/Modules/Platform/Emscripten.cmake)
# Headers alone (nlohmann-json) serve any processor, but the compiler must not see the host's C headers beside them.
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(nlohmann_json_DIR ${CMAKE_CURRENT_LIST_DIR}/wasm32)
# Exceptions of WebAssembly itself: errors carry their message, and code that does not throw pays nothing.
set(CMAKE_CXX_FLAGS_INIT "-fwasm-exceptions -msimd128 -include ${CMAKE_CURRENT_LIST_DIR}/wasm32_std.h")
# Node 18 and newer has fetch(), which the loader of emscripten 3.1 mistakes for a browser's.
set(CMAKE_CROSSCOMPILING_EMULATOR "${NODE_JS_EXECUTABLE};--no-experimental-fetch")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-fwasm-exceptions -sALLOW_MEMORY_GROWTH -sTOTAL_STACK=1MB")
