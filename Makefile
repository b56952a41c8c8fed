# `make demo` runs the main job, `make test` runs every check; both set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check format bench clean

demo: .venv/.demo
	$(BIN)/anyk demo --output demo-output

test: check
	$(BIN)/pytest -q

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev
	$(BIN)/python benchmarks/run.py

$(BIN)/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"

.venv/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo]'
	touch $@

.venv/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev -e '.[demo]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --prefix .venv/mpich mpich  # beside Open MPI
	touch $@ .venv/.demo

clean:
	rm -rf .venv demo-output
