# Two commands do everything on a machine with Python 3.11+, make and a package registry:
#   make run    set up, then the main job
#   make test   set up, then every check CI makes
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.PHONY: run test test-slow lint format docs docs-serve dist bench mutate clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	# torch first and pinned, so that the CPU build is taken where one is offered.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

run: $(STAMP)
	$(BIN)/codeward run -o runs/digits

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell

test: lint
	$(BIN)/pytest -n 2 -m "not slow" --doctest-modules src/codeward tests

test-slow: $(STAMP)
	$(BIN)/pytest -m slow

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation site, without network, every warning an error; tutorials are executed.
docs: $(STAMP)
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

# Wheel and source archive, checked; then the wheel in fresh environments with each extra alone (minutes).
# Its tools have an environment of their own: twine and Flower ask for different versions of packaging.
dist:
	rm -rf dist build/tools
	$(PYTHON) -m venv build/tools
	build/tools/bin/pip install --quiet "build>=1.2" "twine>=6.0"
	build/tools/bin/python -m build --quiet
	build/tools/bin/twine check --strict dist/*
	bash .ci/check-dist

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# Do the tests notice small changes to what is proved? About an hour on one core; not part of CI.
mutate: $(STAMP)
	$(BIN)/python -m benchmarks.mutate

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
