# Two commands matter: `make up` and `make test`. Everything else serves them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-test
# The locks are whole, so there is nothing to resolve; a module is compiled when it is first imported.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile

.PHONY: help install install-test venv-module up test check bench bench-compare demo lock clean

help:
	@echo "make up       all of Rota in one process, on an embedded PostgreSQL; Ctrl-C ends it"
	@echo "make demo     the promises, kept line by line on a real database"
	@echo "make check    lint, types and the floors of the house"
	@echo "make test     the whole test suite"
	@echo "make bench    the benchmarks, see docs/benchmarks.md"
	@echo "make bench-compare  Rota beside other job queues and a yardstick; installs them in a cache folder"
	@echo "make lock     pin the dependencies anew"
	@echo "make clean    remove what was installed and built"

# What running needs.
install: $(STAMP)

# What checks and tests need as well.
install-test: $(TEST_STAMP)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Rota needs Python 3.11 or newer; name it with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || $(MAKE) --no-print-directory venv-module
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --require-hashes --requirement requirements.lock
	$(PIP_INSTALL) --no-build-isolation --editable .
	@touch $(STAMP)

$(TEST_STAMP): $(STAMP) requirements-test.lock
	$(PIP_INSTALL) --require-hashes --requirement requirements-test.lock
	@touch $(TEST_STAMP)

# Debian keeps a part of Python's venv module in a package of its own.
venv-module:
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq python3-venv; \
	else \
	  echo "Python's venv module is incomplete here; on Debian: sudo apt-get install python3-venv"; exit 1; \
	fi

up: install
	@$(BIN)/rota dev

demo: install
	@$(BIN)/rota demo

test: install-test
	$(BIN)/python -m pytest -n 4 --dist loadgroup -q

check: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install-test
	@$(BIN)/python -m benchmarks

bench-compare: install-test
	@$(BIN)/python -m benchmarks compare $(ARGS)

# Writes the locks anew: hashes, no index and no file addresses.
PIP_COMPILE := $(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options
lock: install-test
	$(PIP_COMPILE) --extra dev --build-deps-for editable --output-file requirements.lock pyproject.toml
	$(PIP_COMPILE) --output-file requirements-test.lock requirements-test.in

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
