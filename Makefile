# `make demo` and `make test` need nothing but Python >= 3.10: they build .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One thread a process: the networks are small, and tests run one process a core.
export OMP_NUM_THREADS := 1

.PHONY: demo test test-all lint bench clean

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -W ignore examples/demo.py

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 -q

test-all: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 -q -m ""

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache
