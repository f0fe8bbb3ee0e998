#!/usr/bin/env bash
# The library in WebAssembly, compiled by emscripten.
# usage: scripts/wasm.sh check    the conformance grid under node, and web/built/ compared with what the source gives
#        scripts/wasm.sh update   writes web/built/ anew (make web)
set -euo pipefail
cd "$(dirname "$0")/.."
export NODE_PATH=${NODE_PATH:-/usr/share/nodejs}  # where the packages that Debian's emscripten needs lie

build=build-wasm built=web/built
cmake -B "$build" -G Ninja --toolchain cmake/toolchains/wasm32-emscripten.cmake -Wno-dev \
  -DCMAKE_BUILD_TYPE=Release -DROOTDK_CUDA=OFF -DROOTDK_TOOLS=OFF -DROOTDK_INSTALL=OFF -DROOTDK_FUZZ=OFF
cmake --build "$build" --target rootdk_live

case ${1:?usage: wasm.sh check|update} in
  update)
    cp "$build/rootdk_live.js" "$built/rootdk_live.js"
    gzip -9 -n -c "$build/rootdk_live.wasm" >"$built/rootdk_live.wasm.gz"
    emcc --version | head -n 1 >"$built/compiler.txt"
    ;;
  check)
    cmake --build "$build" --target cpu_conformance_test
    ctest --test-dir "$build" --output-on-failure --output-junit "$PWD/$build/junit.xml" --tests-regex '^cpu_conformance_test$'
    if [ "$(emcc --version | head -n 1)" != "$(cat "$built/compiler.txt")" ]; then
      echo "web/built was made by another emscripten: $(cat "$built/compiler.txt"); not compared"
    elif cmp "$build/rootdk_live.js" "$built/rootdk_live.js" &&
      gzip -d -c "$built/rootdk_live.wasm.gz" | cmp - "$build/rootdk_live.wasm"; then
      echo "web/built is what the source gives"
    else
      echo "web/built is older than the source: run make web" >&2
      exit 1
    fi
    ;;
esac
