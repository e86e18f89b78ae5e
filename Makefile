# A fresh clone needs Python >= 3.10 with venv, a C++20 compiler and make; the rest is set up here.
PY       ?= python3
VENV     ?= .venv
TORCH    ?= torch==2.13.0
RUN_ARGS ?=
SANITIZE ?=
# Which of the supported ones `make matrix` goes through; all of them if empty.
TORCH_MINORS ?=
# Others than the one that builds: the oldest GCC, and Clang.
COMPILERS ?= g++-11 clang++

# A developer wants the compiler's error, not the Python capture in its place.
export COMMPROF_REQUIRE_NATIVE := 1

BIN     := $(VENV)/bin
# Compiling all of torch to bytecode takes pip a minute, of which training needs a quarter: see $(BUILT).
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
NATIVE  := $(shell find csrc tools -name '*.cpp' -o -name '*.h' -o -name '*.py' -o -name '*.cmake' \
           -o -name CMakeLists.txt) CMakeLists.txt setup.py pyproject.toml
CXX_ALL := $(shell find csrc tests/cpp -name '*.cpp' -o -name '*.h' 2>/dev/null)
CPP_DIR := build/cpp$(if $(SANITIZE),-$(SANITIZE))

# Stamps. The first carries the torch, so that another TORCH= is installed.
DEPS  := $(VENV)/.deps-$(subst /,-,$(subst =,-,$(TORCH)))
BUILT := $(VENV)/.built
DEV   := $(VENV)/.dev
WARM  := $(VENV)/.warm

# Training frameworks, in an environment over this one: what they bring changes nothing here.
OTHERS_DIR := $(VENV)-integrations
OTHERS     := $(OTHERS_DIR)/.done

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Without RUN_ARGS. About 30 s on two cores; every epoch is whole batches at each world size.
DEMO := --workload transformer:vocab=1024,d_model=128,sequence=32,samples=1024 --steps 32

run: $(BUILT) ## set up what is missing, then profile 8 ranks (RUN_ARGS=...)
	$(BIN)/python -m commprof.run --nproc 8 $(or $(RUN_ARGS),$(DEMO))

# Three at a time, as many of them sleep; what measures time runs alone.
test: $(BUILT) $(DEV) build-cpp ## set up what is missing, then run the tests that are not slow
	$(BIN)/python -m pytest -q -n 3 --dist loadfile -m 'not measures and not slow'
	$(BIN)/python -m pytest -q -m 'measures and not slow'

test-all: ## set up what is missing, then run all tests: `make test`, then `make test-slow`
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-slow

test-slow: $(BUILT) $(DEV) build-all-cpp ## set up what is missing, then run the tests that `make test` leaves out
	$(BIN)/python -m pytest -q -n 3 --dist loadfile -m 'slow and not measures'
	$(BIN)/python -m pytest -q -m 'slow and measures'

check-capture: $(BUILT) $(DEV) ## rebuild the module after a change, then run the quick tests of capture
	$(BIN)/python -m pytest -q -n 3 --dist loadfile -m 'not measures and not slow' \
	  tests/unit/capture tests/integration/capture

integrations: $(OTHERS) ## run what needs training frameworks, or other libraries of workloads
	$(OTHERS_DIR)/bin/python -m pytest -q -m needs

test-cpp: build-cpp ## run the core's own tests (SANITIZE=address,undefined or thread)
	@$(BIN)/ctest --test-dir '$(CPP_DIR)' --output-on-failure --no-tests=error

build-cpp: $(DEPS)
	@$(BIN)/cmake -S . -B '$(CPP_DIR)' -G Ninja -DCMAKE_MAKE_PROGRAM='$(abspath $(BIN))/ninja' \
	  -DCOMMPROF_TESTS=ON -DCOMMPROF_SANITIZE='$(SANITIZE)' \
	  -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >/dev/null
	@$(BIN)/cmake --build '$(CPP_DIR)'

build-all-cpp: build-cpp
	@$(MAKE) --no-print-directory build-cpp SANITIZE=address,undefined
	@$(MAKE) --no-print-directory build-cpp SANITIZE=thread
	@$(BIN)/python -m tests.support.machines.extensions

# A compiler reads the module's sources as one: torch's headers take the time.
READS_MODULE = find csrc/torch csrc/tune/torch -name '*.cpp' | sort | sed 's|.*|\#include "&"|' | \
  $(1) -x c++ -std=c++20 -fPIC -Wall -Wextra -Werror -I. -Icsrc \
    $$($(BIN)/python tools/module_flags.py) -

compilers: $(DEPS) ## build the core, and check the module's sources, with COMPILERS
	@for cxx in $(COMPILERS); do echo "$$cxx" && \
	  CXX="$$cxx" $(BIN)/cmake -S . -B "build/$$cxx" -G Ninja \
	    -DCMAKE_MAKE_PROGRAM='$(abspath $(BIN))/ninja' \
	    -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG= -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >/dev/null && \
	  $(BIN)/cmake --build "build/$$cxx" && \
	  $(call READS_MODULE,$$cxx -fsyntax-only) || exit 1; done

# Debian: apt install g++-aarch64-linux-gnu qemu-user
aarch64: $(DEPS) ## cross-compile core and module for 64-bit Arm, run the core's tests under qemu-user
	$(BIN)/cmake -S . -B build/aarch64 -G Ninja -DCMAKE_MAKE_PROGRAM='$(abspath $(BIN))/ninja' \
	  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
	  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
	  -DCMAKE_CROSSCOMPILING_EMULATOR='qemu-aarch64;-L;/usr/aarch64-linux-gnu' \
	  -DCOMMPROF_TESTS=ON -DCMAKE_COMPILE_WARNING_AS_ERROR=ON >/dev/null
	$(BIN)/cmake --build build/aarch64
	$(call READS_MODULE,aarch64-linux-gnu-g++ -O1 -c -o build/aarch64/module.o)
	COMMPROF_EMULATED=1 $(BIN)/ctest --test-dir build/aarch64 --output-on-failure --no-tests=error \
	  -j 2 -E '^test_(recorder_fork|shm_failure|device_timeline)$$' # qemu forks no threads, traces nothing, is late

lint: $(DEV) ## check style, types and spelling
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CXX_ALL)
	$(BIN)/codespell

format: $(DEV) ## apply the style
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_ALL)

build: $(BUILT) ## build the C++ module for this environment's torch

# With auditwheel and patchelf beside it, the wheel says which systems it runs on; torch's
# libraries stay torch's.
wheel: $(BUILT) ## build dist/*.whl, which installs without a compiler beside this torch
	@rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps -w build/wheel .
	@mkdir -p dist && if [ -x $(BIN)/auditwheel ]; then \
	  PATH='$(abspath $(BIN))':"$$PATH" $(BIN)/auditwheel repair --exclude 'libtorch*' \
	    --exclude 'libc10*' -w dist build/wheel/*.whl; else cp build/wheel/*.whl dist; fi
	@rm -r build/wheel && ls dist/*.whl

stubs: $(BUILT) $(DEV) ## regenerate the type stubs of the built modules
	$(BIN)/python tools/make_stubs.py commprof/_C.pyi
	$(BIN)/python tools/make_stubs.py commprof/_tune.pyi
	$(BIN)/python tools/make_stubs.py commprof/_reading.pyi

tables: $(DEV) ## regenerate the Python tables that stand in C++ headers
	$(BIN)/python tools/make_tables.py

docs: $(DEV) ## build the documentation as a site in build/docs; any warning fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

bench: $(BUILT) $(DEV) ## measure what commprof itself costs
	$(BIN)/python benchmarks/own_cost/calls.py
	$(BIN)/python benchmarks/own_cost/calibration.py
	$(BIN)/python benchmarks/own_cost/overhead.py

matrix: $(BUILT) $(DEV) ## build and test with each supported torch (TORCH_MINORS="2.15")
	PYTHONPATH=. $(BIN)/python benchmarks/torch_versions.py $(TORCH_MINORS) $(MATRIX_ARGS) \
	  --json benchmarks/results/torch_versions.json; status=$$?; \
	  $(BIN)/python -m tools.make_measured && exit $$status

nccl-matrix: $(BUILT) $(DEV) ## play NCCL's calls to the plugin through NVIDIA's libraries
	@$(BIN)/python -m tools.nccl_matrix

clean: ## remove what was built; the virtual environment stays
	rm -rf build dist *.egg-info commprof/*.so commprof/_build_error.txt $(BUILT)
	rm -rf .mypy_cache .pytest_cache .ruff_cache

$(DEPS):
	@$(PY) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit("commprof needs \
	Python 3.10 or newer, $(PY) is %d.%d: try make PY=python3.11" % v[:2])'
	@echo "[1/4] virtual environment: $(VENV)"
	@$(PY) -m venv $(VENV)
	@echo "[2/4] $(TORCH), numpy and build tools: about 1 GB on disk"
	@$(INSTALL) 'setuptools>=77' 'cmake>=3.24' ninja
	@$(BIN)/python tools/native_build.py 2>/dev/null & \
	  $(INSTALL) '$(TORCH)' numpy; status=$$?; wait; exit $$status
	@rm -f $(VENV)/.deps-* $(WARM) && touch $@

# Makes the bytecode that training needs, also where Python is told to write none by itself.
WARMS = PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import torch._dynamo, torch.distributed.launcher.api' && \
  $(BIN)/python -m compileall -q commprof

$(BUILT): $(DEPS) $(NATIVE)
	@echo "[3/4] C++ module for this torch: a minute or two on two cores the first time"
	@test -e $(WARM) || { $(WARMS) 2>/dev/null && touch $(WARM); } & \
	  $(INSTALL) --no-build-isolation -e .; status=$$?; wait; exit $$status
	@touch $@

$(DEV): pyproject.toml | $(BUILT)
	@echo "[4/4] development tools"
	@$(INSTALL) --no-build-isolation -e '.[dev]'
	@$(BIN)/python -m compileall -q -j 0 -x '$(NOT_TESTED)' $(VENV)/lib >/dev/null 2>&1 || true  # some file is of Python 2
	@touch $@

# Half of all installed Python, which hardly any test imports.
NOT_TESTED := /(pip|sympy|networkx|pygments|setuptools|mypyc|kubernetes|scipy|sklearn|tests?)/|torch/(testing|onnx|ao)/

$(OTHERS): pyproject.toml tools/over_environment.py | $(DEV)
	@echo "training frameworks: $(OTHERS_DIR), about 1.5 GB on disk"
	@$(BIN)/python tools/over_environment.py $(OTHERS_DIR) lightning ray hf lora qlora torchft
	@touch $@

.PHONY: help run test test-all test-slow check-capture integrations test-cpp build-cpp build-all-cpp compilers aarch64 lint format build wheel stubs tables docs bench matrix nccl-matrix clean
