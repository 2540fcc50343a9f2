# `make demo` and `make test` need nothing but Python >= 3.11: they build .venv first.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One thread a process: the networks are small, and tests run one process a core.
export OMP_NUM_THREADS := 1

.PHONY: demo dist docs docs-serve test test-all test-wheel lint bench chaos mutants miniworld browser clean
# What the 3D environments draw with (Debian, Ubuntu).
MESA := libegl1 libgl1 libglu1-mesa

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

# The release's files, sdist and wheel, in dist/, and whether an index would take them.
dist: $(VENV)/.installed
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

# The wheel alone, in a fresh virtual environment and an empty folder.
test-wheel: $(VENV)/.installed
	$(BIN)/python -m pytest -q -m "" tests/test_wheel.py

# The documentation site, in site/: any warning, broken link or missing anchor is an error. It is read without a server.
docs: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean
	@echo "open site/index.html"

docs-serve: $(VENV)/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed
	for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# Runs killed, damaged and starved: about 40 minutes; KILLS=20 for less.
chaos: $(VENV)/.installed
	$(BIN)/python -W ignore tests/chaos --kills $(or $(KILLS),210)

# The code broken on purpose in over a hundred places, each of which a test must notice: about ten minutes.
mutants: $(VENV)/.installed
	PYTHONPATH=tests:. $(BIN)/python -m mutants $(MUTANTS)

# Mesa's libraries for the 3D environments, where apt may be used; their Python package comes with .venv.
miniworld: $(VENV)/.installed
	@if $(BIN)/python -c "from torchrl_dceo.envs.miniworld_headless import why_not; raise SystemExit(why_not() is not None)"; then \
		echo "the 3D environments can be drawn"; \
	elif ! command -v apt-get > /dev/null; then echo "no apt-get here: install $(MESA) by hand"; exit 1; \
	elif [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq $(MESA); \
	elif sudo -n true 2> /dev/null; then sudo apt-get update -qq && sudo apt-get install -y -qq $(MESA); \
	else echo "run as root: apt-get install -y $(MESA)"; exit 1; fi

# Chromium, in which the suite opens the report pages, where apt may be used.
browser:
	@if command -v chromium > /dev/null; then echo "report pages can be opened"; \
	elif ! command -v apt-get > /dev/null; then echo "no apt-get here: install chromium by hand"; exit 1; \
	elif [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq chromium; \
	elif sudo -n true 2> /dev/null; then sudo apt-get update -qq && sudo apt-get install -y -qq chromium; \
	else echo "run as root: apt-get install -y chromium"; exit 1; fi

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache
