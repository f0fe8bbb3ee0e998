#!/usr/bin/env bash
# Installs the build into a fresh folder and uses it as three kinds of users do: find_package, pkg-config, and
# add_subdirectory. The programs are the README's own C++ example, cut out of the file, and those of examples/.
# usage: consumer_test.sh SOURCE_DIR BUILD_DIR COMPILER
set -euo pipefail
source_dir=$1 build_dir=$2 compiler=$3
work=$build_dir/consumer
rm -rf "$work"
mkdir -p "$work/app"

cmake --install "$build_dir" --prefix "$work/prefix" >"$work/install.log"

# The first ```cpp block of the README.
awk '/^```cpp$/ && !seen {inside = 1; seen = 1; next} /^```$/ {inside = 0} inside' "$source_dir/README.md" \
  >"$work/app/main.cpp"
[ -s "$work/app/main.cpp" ] || { echo "README.md has no C++ example"; exit 1; }

cat >"$work/app/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(consumer CXX)
if(ROOTDK_SUBDIRECTORY)
  add_subdirectory(${ROOTDK_SUBDIRECTORY} rootdk)
else()
  find_package(rootdk 0.1 CONFIG REQUIRED)
endif()
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE rootdk::rootdk)
CMAKE

echo "-- find_package"
cmake -S "$work/app" -B "$work/found" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$compiler" \
  ${CONSUMER_FLAGS:+-DCMAKE_CXX_FLAGS="$CONSUMER_FLAGS"} >"$work/found.log"
cmake --build "$work/found" >>"$work/found.log"
"$work/found/consumer" | tee "$work/found.out"

echo "-- examples"
cmake -S "$source_dir/examples" -B "$work/examples" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror ${CONSUMER_FLAGS:-}" \
  -DCMAKE_C_FLAGS="-std=c99 -Wall -Wextra -pedantic -Werror ${CONSUMER_FLAGS:-}" >"$work/examples.log"
cmake --build "$work/examples" >>"$work/examples.log"
"$work/examples/training" | tee "$work/training.out"
# What it is meant to learn: rows that attend to one key or two.
awk '/^step 400/ && $4 < 0.1 && $10 < 2 {learned = 1} END {exit !learned}' "$work/training.out"
"$work/examples/generation" | tee "$work/generation.out"
grep -q "after trim and close: 4 of 32 pages in use, 2 shared" "$work/generation.out"
"$work/examples/plain_c" | tee "$work/plain_c.out"
grep -q "attention: temperature 0 must be positive and finite" "$work/plain_c.out"

echo "-- pkg-config"
libdir=$(dirname "$(find "$work/prefix" -name rootdk.pc)")
export PKG_CONFIG_PATH=$libdir
# shellcheck disable=SC2046
"$compiler" -std=c++20 "$work/app/main.cpp" ${CONSUMER_FLAGS:-} -o "$work/pkg" $(pkg-config --cflags --libs rootdk)
LD_LIBRARY_PATH=$(pkg-config --variable=libdir rootdk) "$work/pkg" | tee "$work/pkg.out"
cmp "$work/found.out" "$work/pkg.out"

# shellcheck disable=SC2046
"${CC:-cc}" -std=c99 -Wall -Werror "$source_dir/examples/plain_c.c" ${CONSUMER_FLAGS:-} -o "$work/pkg_c" \
  $(pkg-config --cflags --libs rootdk) -lm
LD_LIBRARY_PATH=$(pkg-config --variable=libdir rootdk) "$work/pkg_c" | cmp - "$work/plain_c.out"
if "$compiler" -std=c++17 -fsyntax-only "$work/app/main.cpp" $(pkg-config --cflags rootdk) 2>"$work/old.log"; then exit 1; fi
grep -q "need C++20" "$work/old.log"

echo "-- versioned library and C header"
ls "$work"/prefix/lib*/librootdk.so.*.*.* >/dev/null
printf '#include "rootdk/c_api.h"\nint main(void) { return rootdk_version()[0] == 0; }\n' >"$work/app/plain.c"
"${CC:-cc}" -std=c99 -Wall -Wextra -pedantic -Werror -I"$work/prefix/include" -c "$work/app/plain.c" -o "$work/plain.o"

echo "-- the library of models, from C, by its CMake target"
mkdir "$work/models"
cat >"$work/models/main.c" <<'C'
#include <stdio.h>
#include "rootdk/models_c_api.h"
int main(void) {
  rootdk_model* model = NULL;
  if (rootdk_model_load("builtin", &model) != ROOTDK_OK) return printf("%s\n", rootdk_last_error()), 1;
  rootdk_model_info info;
  rootdk_model_info_init(&info);
  rootdk_model_describe(model, &info);
  printf("%s\n", info.architecture);
  rootdk_model_destroy(model);
  return 0;
}
C
cat >"$work/models/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(consumer C)
find_package(rootdk 0.1 CONFIG REQUIRED)
add_executable(consumer main.c)
target_compile_options(consumer PRIVATE -std=c99 -Wall -Wextra -pedantic -Werror)
target_link_libraries(consumer PRIVATE rootdk::models)
CMAKE
cmake -S "$work/models" -B "$work/models/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  ${CONSUMER_FLAGS:+-DCMAKE_C_FLAGS="$CONSUMER_FLAGS"} >"$work/models.log"
cmake --build "$work/models/build" >>"$work/models.log"
[ "$("$work/models/build/consumer")" = rootdk_lm ]

echo "-- add_subdirectory configures without tests or tools"
cmake -S "$work/app" -B "$work/sub" -G Ninja -DROOTDK_SUBDIRECTORY="$source_dir" -DROOTDK_CUDA=OFF \
  -DCMAKE_CXX_COMPILER="$compiler" >"$work/sub.log"
if cmake --build "$work/sub" --target help | grep -qE 'gtest|rootdk_cli|_test\b'; then
  echo "a subdirectory build has tests or tools in it"
  exit 1
fi
