# `make demo` and `make test` are all that a newcomer needs; each sets up .venv in the checkout.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.recguide-ready
EXTRAS := serve,plots,dev
SGLANG_VENV := .venv-sglang
DOCS_VENV := .venv-docs
QUICK := -m "not gpu and not slow"
# One numerical thread: the bundled model is small, and threads that spin hurt on a shared machine.
THREADS ?= 1
export OMP_NUM_THREADS := $(THREADS)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow check format test-kernels test-sglang tables transcripts docs wheel clean

help: ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

venv: $(READY) ## Create .venv with the extras serve, plots and dev

$(READY): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "RecGuide needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[$(EXTRAS)]"
	@touch $@

demo: $(READY) ## Bench AR against LinearSS on the bundled model and real prompts
	$(BIN)/recguide bench --model nld-tiny --data demo --methods ar,linear --block-size 16 \
		--concurrency 1,8 --out runs/demo --overwrite
	@echo "Report: runs/demo/report.html"

test: $(READY) ## Run the tests (kernels and SGLang have targets of their own)
	$(BIN)/python -m pytest $(QUICK) --ignore tests/kernels --ignore tests/sglang

test-slow: $(READY) ## Run the tests that take minutes
	$(BIN)/python -m pytest -m "slow and not gpu" --ignore tests/sglang

check: $(READY) ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY) ## Rewrite the sources in the house's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test-kernels: $(READY) ## Kernels in the interpreter, compiled for sm_90 and sm_100, and the device script
	$(BIN)/python -m pytest $(QUICK) tests/kernels
	mkdir -p build
	$(BIN)/python scripts/device_check.py --tiny --budget 120 --out build/device_check.json

test-sglang: ## The SGLang engine in its own environment
	PYTHON="$(PYTHON)" VENV="$(SGLANG_VENV)" bash scripts/test_sglang.sh

tables: $(READY) ## Remake the shipped tables
	bash scripts/make_tables.sh

transcripts: $(READY) ## Run the commands that the documentation shows and keep what they said
	$(BIN)/python scripts/transcripts.py

docs: $(DOCS_VENV)/.recguide-ready ## Build the documentation site into site/
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --quiet --strict

$(DOCS_VENV)/.recguide-ready: constraints.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --constraint constraints.txt mkdocs-material
	@touch $@

wheel: $(READY) ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

clean: ## Remove build outputs and caches, keep .venv and runs
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
