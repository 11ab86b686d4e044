# Needs only Python >= 3.10 (PYTHON=python3.12 picks one) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Holds the two files the environment was built from; written last, so a half-built environment has none.
STAMP := $(VENV)/.built-from
TORCH := $(shell grep '^torch==' constraints.txt)

# Tests are many small computations: one thread in each of a few processes is the fastest way through them.
PYTEST := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest
WORKERS ?= auto

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint bench bench-full bench-gpu format clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 | \2/p' Makefile | while IFS='|' read -r name what; do \
		printf '%-20s%s\n' "$$name" "$$what"; done

setup: $(STAMP) ## build .venv if it is missing, half built or out of date

demo: $(STAMP) ## train small networks, compare posteriors, draw pictures (a minute)
	$(BIN)/linlap demo

test: lint ## lint, format check, types, then the tests, with the README's and the docs' code
	$(PYTEST) -n $(WORKERS) --maxprocesses 8

test-slow: $(STAMP) ## the tests that take long or measure time
	$(PYTEST) -m "slow and not gpu and not peer"

lint: $(STAMP) ## lint, format check and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP) ## build the peers' environment, then measure against it: the quick form, some minutes
	PYTHON=$(PYTHON) bash benchmarks/setup_peers.sh
	.venv-peers/bin/python -m benchmarks --quick

bench-full: $(STAMP) ## every comparison and growth curve, the picture and the pages: hours, 16 GiB
	PYTHON=$(PYTHON) bash benchmarks/setup_peers.sh
	.venv-peers/bin/python -m benchmarks --full
	.venv-peers/bin/python -m benchmarks.evidence
	$(BIN)/python -m benchmarks.validation
	$(BIN)/python -m benchmarks.refinement
	$(BIN)/python -m benchmarks.many_outputs
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.large_gp
	$(BIN)/python -m benchmarks.picture
	$(BIN)/python -m benchmarks.pages

bench-gpu: $(STAMP) ## latent covariances and fits on a GPU
	$(BIN)/python -m benchmarks.gpu --fits 4096

format: $(STAMP) ## mend format and imports
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv, caches and build products
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@if cat pyproject.toml constraints.txt | cmp -s - $@; then touch $@; else $(MAKE) --no-print-directory .build; fi

# Starts afresh where no build ever finished or its Python is gone; otherwise brings what is there up to date.
.PHONY: .build
.build:
	@$(PYTHON) -c 'import sys; sys.exit("linlap needs Python 3.10 or later, this is " + sys.version.split()[0] \
		+ "; name another one: make PYTHON=python3.12" if sys.version_info < (3, 10) else 0)'
	{ test -e $(STAMP) && $(BIN)/python -c ''; } || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) install --constraint constraints.txt $(TORCH)
	$(PIP) install --constraint constraints.txt --editable '.[dev,plot,sklearn,hmc]'
	cat pyproject.toml constraints.txt > $(STAMP)
