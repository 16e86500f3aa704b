# make demo: build the shipped model, prove parity, pronounce unseen words.   make test: the tests.
# Both set everything up by themselves; nothing is needed but Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
HELD_OUT := reference_model/pretrained/g2p-en/held_out.tsv

.PHONY: demo test test-peers lint format bench-peers clean

demo: $(VENV)/installed
	$(BIN)/dragoman build g2p-en --output bundles/g2p-en --limit 1000 --force
	$(BIN)/python -m dragoman.benchmarks.demo bundles/g2p-en $(HELD_OUT)

# A worker for each core, a thread for each worker.
test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The same weights in CTranslate2, interleaved with ours in one run.
test-peers: $(VENV)/installed-peers
	$(BIN)/python -m pytest -m peers

bench-peers: $(VENV)/installed-peers
	$(BIN)/python -m dragoman.benchmarks.compare --output benchmarks/results

clean:
	rm -rf $(VENV) bundles build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Marker files: an environment is made anew when what it is made from changes.
$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| (echo "Dragoman needs Python 3.11 or newer, found $$($(PYTHON) --version); give another: make PYTHON=..."; exit 1)
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(INSTALL) --editable ".[cpu,export]"
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) --editable ".[cpu,export,train,dev]"
	@touch $@

$(VENV)/installed-peers: $(VENV)/installed-dev
	$(INSTALL) --editable ".[cpu,export,train,dev,peers]"
	@touch $@
