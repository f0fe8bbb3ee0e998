#!/usr/bin/env bash
# The library in WebAssembly, compiled by emscripten.
# usage: scripts/wasm.sh check    the conformance grid under node, and the answers of web/built/ compared with those of the source
#        scripts/wasm.sh update   writes web/built/ anew (make web)
set -euo pipefail
cd "$(dirname "$0")/.."

mode=${1:?usage: wasm.sh check|update}
command -v emcc >/dev/null && command -v node >/dev/null || {
  echo "wasm: emcc and node are not installed (apt-get install emscripten); the WebAssembly target is neither built nor tested" >&2
  [ "$mode" = check ] && exit 0
  exit 1
}
export NODE_PATH=${NODE_PATH:-/usr/share/nodejs}  # where the packages that Debian's emscripten needs lie
export CCACHE_COMPILERTYPE=clang

build=build-wasm built=web/built
cmake -B "$build" -G Ninja --toolchain cmake/toolchains/wasm32-emscripten.cmake -Wno-dev \
  -DCMAKE_BUILD_TYPE=Release -DROOTDK_CUDA=OFF -DROOTDK_TOOLS=OFF -DROOTDK_INSTALL=OFF -DROOTDK_FUZZ=OFF
cmake --build "$build" --target rootdk_live

# What the library in these two files answers to a list of requests, without the seconds it took.
answers() {
  node --no-experimental-fetch tests/web/session.mjs "$1" "$2" models/builtin <tests/web/requests.jsonl |
    sed -E 's/"seconds":[^,}]*//g'
}

case $mode in
  update)
    mkdir -p "$built"
    cp "$build/rootdk_live.js" "$built/rootdk_live.js"
    gzip -9 -n -c "$build/rootdk_live.wasm" >"$built/rootdk_live.wasm.gz"
    ;;
  check)
    cmake --build "$build" --target cpu_conformance_test cpu_linear_test cpu_append_test
    ctest --test-dir "$build" --output-on-failure --output-junit "$PWD/$build/junit.xml" --tests-regex '^cpu_(conformance|linear|append)_test$'
    answers "$build/rootdk_live.js" "$build/rootdk_live.wasm" >"$build/answers.source"
    answers "$built/rootdk_live.js" "$built/rootdk_live.wasm.gz" >"$build/answers.kept"
    if cmp "$build/answers.source" "$build/answers.kept"; then
      echo "web/built answers as the source does"
    else
      echo "web/built is older than the source: run make web" >&2
      exit 1
    fi
    ;;
  *)
    echo "wasm.sh: $mode is neither check nor update" >&2
    exit 2
    ;;
esac
