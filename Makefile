# Every target does its own set-up: `make test` in a fresh clone first makes .venv, later runs reuse it.
#
#   PYTHON=python3.12   the interpreter that .venv is made with
#   VENV=path           another place for the environment
#   TORCH_INDEX=https://...   where torch comes from; without it scripts/torch_index.py chooses, and says what
#   WORKERS=8           test processes
#   ARGS='-k pooling'   passed on to pytest, to the demo or to the benchmarks

PYTHON  ?= python3
VENV    ?= .venv
WORKERS ?= 2
ARGS    ?=

PY    := $(VENV)/bin/python
PIP   := $(PY) -m pip --disable-pip-version-check
STAMP := $(VENV)/.stamp
DOCS  := $(VENV)/.docs

# pyproject.toml is the only place that names versions.
TORCH := $(shell sed -n 's/.*"\(torch\(vision\)\{0,1\}==[0-9.*]*\)".*/\1/p' pyproject.toml)

# One thread per test process: WORKERS of them already fill the machine.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n $(WORKERS) --dist worksteal

# The graph and its passes, the two file formats, and recorded programs of each kind of target on this machine.
SMOKE := tests/unit/container tests/unit/ir/test_graph.py tests/unit/ir/test_verify.py \
         tests/unit/passes/test_passes_fusion.py tests/runtime/test_golden.py

# Hundreds of test processes import the package: compiling it each time takes more than a second, and rewriting the
# assertions of the tests fifteen.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo smoke quick test test-all networks zoo mutation fuzz lint format tables docs bench pages canary clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## make the environment (.venv) with everything in it

# torch and torchvision go first, and from one place: with them there no other package makes pip look for another, much
# larger build, and a torchvision of another place does not import.
$(STAMP): pyproject.toml
	@test -x $(PY) || { \
	  $(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 10) <= v < (3, 14) else "micronpu needs Python 3.10 to 3.13, and $(PYTHON) is %d.%d. Try: make PYTHON=python3.12 $(MAKECMDGOALS)" % v)' && \
	  echo "==> making $(VENV) with $$($(PYTHON) --version)" && \
	  $(PYTHON) -m venv $(VENV); }
	@echo "==> installing $(TORCH)"
	@$(PIP) install -qq $(TORCH:%='%') $$($(PY) scripts/torch_index.py)
	@echo "==> installing micronpu and its other dependencies (about a minute)"
	@$(PIP) install -qq -e '.[dev]'
	@$(PIP) check
	@$(PY) -c 'import torch; print("==> torch", torch.__version__)'
	@$(PY) -c 'import torchvision' 2>/dev/null || echo "==> torchvision is of another torch: micronpu doctor says how to get it (models of torchvision need it)"
	@echo "==> ready: '. $(VENV)/bin/activate' makes micronpu a command of the shell, and micronpu doctor shows what it finds"
	@touch $@

$(DOCS): $(STAMP)
	@$(PIP) install -qq -e '.[docs]'
	@touch $@

demo: $(STAMP) ## compile the keyword spotter for i.MX RT700 and Corstone-300, and run both
	$(PY) examples/keyword_spotting/demo.py $(ARGS)

smoke: $(STAMP) ## run a few tests of each part, for 20 seconds
	OMP_NUM_THREADS=1 $(PY) -m pytest -q $(SMOKE) $(ARGS)

quick: $(STAMP) ## run the tests nearest to what differs from main, for a minute (ARGS='--list', or changed files)
	OMP_NUM_THREADS=1 $(PY) -m tests.quick $(ARGS)

test: $(STAMP) ## run the tests, without the slow ones and with the commit's share of sweeps (ARGS='--rows all')
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(STAMP) ## run all tests
	$(PYTEST) --rows all $(ARGS)

networks: $(STAMP) ## ten minutes of random networks on every target (ARGS='--seconds 3600 --first 1000')
	OMP_NUM_THREADS=1 $(PY) -m tests.fuzz.random_networks --seconds 600 --out benchmarks/results/random_networks.json $(ARGS)

zoo: $(STAMP) ## fetch trained networks from registries, compile and judge them (ARGS='pnet,onet corstone300')
	@$(PIP) install -qq av h5py requests scipy soundfile soxr
	OMP_NUM_THREADS=1 $(PY) -m benchmarks.zoo $(ARGS)

mutation: $(STAMP) ## break passes, rewrites and rules one at a time, and list what no test notices (ARGS='passes/layout.py')
	OMP_NUM_THREADS=1 $(PY) -m tests.mutation.mutate --seconds 3600 --out benchmarks/results/mutation.json $(ARGS)

fuzz: $(STAMP) ## an hour of mutated files against all that reads files, under sanitizers
	$(PY) -m tests.fuzz $(ARGS)

lint: $(STAMP) ## check style, formatting, types and the English of docstrings, comments and messages
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) scripts/stumbles.py
	$(PY) -m mypy

format: $(STAMP) ## sort imports, repair what can be repaired, format
	$(PY) -m ruff check --fix-only --quiet .
	$(PY) -m ruff format .

tables: $(STAMP) ## write the support tables in docs/ and the schema of reports anew
	$(PY) -m tests.support_tables $(ARGS)
	$(PY) -m tests.report_schema
	$(PY) -m tests.layers
	$(PY) -m tests.memory_tables

docs: $(DOCS) ## check the prose and build the documentation site in build/site, strictly
	$(PY) scripts/prose.py
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

bench: $(STAMP) ## run the benchmarks
	$(PY) -m benchmarks.run $(ARGS)

canary: $(STAMP) ## run the tests with the newest torch, torchao and ExecuTorch, in .venv-canary (ARGS='--beyond')
	$(PY) scripts/canary.py $(ARGS)

pages: $(STAMP) ## make the tables of docs/ of benchmarks/results
	$(PY) -m benchmarks.pages $(ARGS)

clean: ## remove what builds, tests and checks leave behind (.venv stays)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
