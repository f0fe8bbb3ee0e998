# The commands of the project. Each installs the Debian packages it misses, configures, builds and runs.
#   make run      build, then the tour: a minute's walk through everything
#   make test     build, then every test
#   make check    clang-tidy, warnings as errors, sanitizers, threads, fuzzing, cross-compiled targets and 20,000 random configurations
#   make campaign N=1000000   random configurations against an oracle, as many as asked, then fuzzing; resumes
#   make bench    the benchmark grid, into docs/results/
#   make format   clang-format over the tree
#   make wheel    a Python wheel with the libraries, the command line and the built-in model, into dist/
#   make web      the library in WebAssembly for the live page, into web/built/ (emscripten)
#   make install  into PREFIX (default /usr/local)

.PHONY: run build test check campaign bench format wheel web install clean
PREFIX ?= /usr/local
N ?= 1000000

run:
	@scripts/setup.sh build
	@scripts/build.sh release rootdk_cli -DROOTDK_TESTS=OFF
	@build/rootdk tour

build:
	@scripts/setup.sh build
	@scripts/build.sh release all -DROOTDK_TESTS=OFF

test:
	@scripts/setup.sh test
	@scripts/test.sh release all

check:
	@scripts/setup.sh check
	@scripts/check.sh

campaign:
	@scripts/setup.sh campaign
	@scripts/campaign.sh $(N)

bench: build
	@scripts/setup.sh bench
	@bench/run.sh

format:
	@scripts/setup.sh format
	@git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' 'web/src/*.js' 'tests/web/*.mjs' | xargs clang-format-14 -i

wheel: build
	@scripts/setup.sh wheel
	@python3 scripts/build_wheel.py build dist

web:
	@scripts/setup.sh web
	@scripts/wasm.sh update

install: build
	@cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build build-* dist
