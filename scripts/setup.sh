#!/usr/bin/env bash
# Installs the Debian packages that a make target needs and the machine lacks. Quick and silent when nothing is missing.
# usage: scripts/setup.sh build|test|check|campaign|bench|format|wheel|web
set -euo pipefail

build="g++ cmake ninja-build ccache pkg-config nlohmann-json3-dev libcli11-dev libopenblas-dev libdnnl-dev libicu-dev libopenmpi-dev openmpi-bin"
python="python3 python3-dev python3-numpy python3-torch python3-pytest python3-venv"
test="$build libgtest-dev libgmock-dev librapidcheck-dev binutils patchelf $python chromium chromium-driver python3-selenium"
check="$test clang-14 clang-tidy-14 libclang-rt-14-dev g++-12-aarch64-linux-gnu qemu-user emscripten"
campaign="$build $python clang-14 libclang-rt-14-dev llvm-14 patch"
bench="$build python3 python3-numpy python3-torch"
format="clang-format-14"
wheel="$build python3 python3-dev binutils patchelf"
web="cmake ninja-build ccache nlohmann-json3-dev libgtest-dev emscripten"

group=${1:?usage: setup.sh build|test|check|campaign|bench|format|wheel|web}
packages=${!group:?unknown group $group}

missing=()
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

echo "rootdk: installing ${missing[*]}"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "rootdk: these packages are missing, and neither root nor sudo is at hand. Please run:" >&2
    echo "  apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  "${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1
}
# The package lists may be absent or old: fetch them only when the first try fails.
install || { "${as_root[@]}" apt-get update -q >"$log" 2>&1 && install; } || {
  tail -n 20 "$log" >&2
  echo "rootdk: apt-get could not install ${missing[*]}" >&2
  exit 1
}
