# What a user types. `make` alone lists it. The work is done by `.venv/bin/repro`; this file only makes .venv.

PYTHON ?= python3
ACCELERATOR ?= auto
ARGS ?=
PYTEST_ARGS ?=
NAME ?=
UPGRADE ?=

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help reproduce test check format lab doctor prepare report bench lock check-cuda-resolves clean distclean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "  PYTHON=$(PYTHON) (3.11 or newer)  ACCELERATOR=auto|cpu|cuda (auto: cuda where nvidia-smi lists a GPU)"

# ---- .venv ----------------------------------------------------------------------------------------------------------
# Complete when the stamps of the current inputs exist. Their names carry a hash of content, not file times; they are
# written last, so an interrupted installation starts over. The folder counts too, since a .venv cannot be moved.

ifeq ($(ACCELERATOR),auto)
override ACCELERATOR := $(if $(shell nvidia-smi -L 2>/dev/null | grep '^GPU '),cuda,cpu)
endif
ifeq ($(filter cpu cuda,$(ACCELERATOR)),)
$(error ACCELERATOR=$(ACCELERATOR) is unknown: use auto, cpu or cuda)
endif

# The interpreter behind PYTHON: with .venv activated, PYTHON is in the folder about to be replaced.
INTERPRETER := $(shell $(PYTHON) -c 'import os, sys; print(os.path.realpath(sys._base_executable), sys.version.split()[0])' \
	2>/dev/null)
CONSTRAINTS := requirements/constraints-$(ACCELERATOR).txt
REQUIREMENTS := requirements/common.in requirements/$(ACCELERATOR).in requirements/no-deps.in $(CONSTRAINTS) \
	$(if $(filter cpu,$(ACCELERATOR)),requirements/fbgemm-gpu-stub/pyproject.toml)
hash = $(shell { cat $(1); echo '$(INTERPRETER) $(CURDIR)'; } 2>/dev/null | sha256sum | cut -c1-16)
PACKAGES := .venv/packages-$(ACCELERATOR)-$(call hash,$(REQUIREMENTS))
PROJECT := .venv/project-$(call hash,pyproject.toml)
PIP = .venv/bin/python -m pip install -qq --disable-pip-version-check --constraint $(CONSTRAINTS)

$(PACKAGES):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "make: PYTHON=$(PYTHON) is not Python 3.11 or newer; name one that is, e.g. make test PYTHON=python3.11" >&2; exit 1; }
	@rm -rf .venv
	@echo "Installing the $(ACCELERATOR) packages into .venv, once: $$(grep -cv '^#' $(CONSTRAINTS)) packages, $(if \
		$(filter cpu,$(ACCELERATOR)),about 2 GB and 2 minutes,several GB and minutes)"
	@$(firstword $(INTERPRETER)) -m venv .venv
	@$(PIP) pip setuptools
	@echo "  $$(grep -E '^(torch|torchrec|fbgemm-gpu|numpy|wandb|jupyterlab)==' $(CONSTRAINTS) | tr '\n' ' ')..."
	@$(PIP) --no-build-isolation -r requirements/$(ACCELERATOR).in
	@$(PIP) --no-deps -r requirements/no-deps.in
	@touch $@

$(PROJECT): $(PACKAGES)
	@rm -f .venv/project-*
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

# ---- targets --------------------------------------------------------------------------------------------------------

reproduce: $(PROJECT) ## prepare data, run, log, draw, execute notebooks; skips what is done (ARGS='--wandb offline')
	@.venv/bin/repro reproduce $(ARGS)

test: $(PROJECT) ## run every test (PYTEST_ARGS=tests/unit narrows it)
	@.venv/bin/pytest $(PYTEST_ARGS)

check: $(PROJECT) ## format, lint and types, changing nothing
	@.venv/bin/ruff format --check
	@.venv/bin/ruff check
	@.venv/bin/mypy

format: $(PROJECT) ## format the code and mend what the linter can
	@.venv/bin/ruff check --fix --exit-zero
	@.venv/bin/ruff format

lab: $(PROJECT) ## open JupyterLab on notebooks/ (ARGS=--no-browser)
	@.venv/bin/jupyter lab notebooks $(ARGS)

doctor: $(PROJECT) ## check this machine and say what to do
	@.venv/bin/repro doctor $(ARGS)

prepare: $(PROJECT) ## prepare one data set (NAME=movielens-100k)
	@$(if $(NAME),,echo "make: name a data set, e.g. make prepare NAME=movielens-100k" >&2; exit 1;) .venv/bin/repro prepare $(NAME) $(ARGS)

report: $(PROJECT) ## draw figures and results/report.html from the runs there are
	@.venv/bin/repro report $(ARGS)

BENCHMARKS := prepare synthetic read partition sample_cost kernels transports
bench: $(PROJECT) ## run the benchmarks: ratios within one run (BENCHMARKS='read partition' narrows it)
	@for name in $(BENCHMARKS); do echo "benchmarks.$$name"; .venv/bin/python -m benchmarks.$$name; done

lock: ## pin requirements/*.in in constraints-*.txt, keeping present pins (UPGRADE=1 drops them); needs Python 3.11
	@$(PYTHON) requirements/lock.py $(if $(UPGRADE),--upgrade)

check-cuda-resolves: $(PROJECT) ## show that the pinned CUDA set resolves; downloads metadata only
	@.venv/bin/python -m pip install -qq --dry-run --ignore-installed --use-feature=fast-deps \
		--constraint requirements/constraints-cuda.txt -r requirements/cuda.in
	@echo "the CUDA set resolves: $$(grep -E '^(torch|torchrec|fbgemm-gpu|triton)==' requirements/constraints-cuda.txt | tr '\n' ' ')"

clean: ## remove results/
	rm -rf results

distclean: clean ## remove results/, prepared data, .venv and caches
	rm -rf .venv data/prepared build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
