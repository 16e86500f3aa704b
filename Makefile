# make demo builds the shipped model, checks its parity and pronounces words it has never seen.
# make test runs the tests. Every target installs what it needs: Python 3.11+ and make suffice.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DOCS_VENV := .venv-docs
DOCS_BIN := $(DOCS_VENV)/bin
PEERS_VENV := .venv-peers
PEERS_BIN := $(PEERS_VENV)/bin
OPENVINO_VENV := .venv-openvino
OPENVINO_BIN := $(OPENVINO_VENV)/bin
TRITON_VENV := .venv-triton
TRITON_BIN := $(TRITON_VENV)/bin
RAY_VENV := .venv-ray
RAY_BIN := $(RAY_VENV)/bin
LOWEST_VENV := .venv-lowest
NEWEST_VENV := .venv-newest
OLD_VENV := .venv-ort-1.27
GPU_VENV := .venv-gpu
GPU_BIN := $(GPU_VENV)/bin
PIP_INSTALL := -m pip --disable-pip-version-check install --quiet
INSTALL := $(BIN)/python $(PIP_INSTALL) --constraint constraints.txt
DRAGOMAN_BROWSER ?= $(firstword $(foreach name,chromium chromium-browser google-chrome,$(shell command -v $(name))))
# What the lowest and the newest versions are tested of. The others need a GPU or an environment of their own.
COMMA := ,
EXTRAS := audio,cpu,detect,export,html,metrics,openvino,pictures,polygraphy,report,sentencepiece,sentences,serve,sign,tensorboard,train,vad,verify
HELD_OUT := reference_model/pretrained/g2p-en/held_out.tsv
HELD_OUT_VERSES := reference_model/pretrained/bible-en-es/held_out.tsv

.PHONY: demo demo-translation demo-speech test test-beams test-mutants test-browser test-engines test-shipped test-lowest test-newest test-versions lowest-versions test-ray test-triton test-peers test-real lint format docs dist bench-peers bench-beams bench-throughput bench-growth bench-large bench-encoders bench-language-models bench-serving soak gpu dry-gpu clean

demo: $(VENV)/installed
	$(BIN)/dragoman build g2p-en --output bundles/g2p-en --limit 1000 --force
	$(BIN)/python -m docs.tools.demo bundles/g2p-en $(HELD_OUT)

# English verses to Spanish: builds and verifies a model and its student, translates verses that neither has
# ever seen, and reports.
demo-translation: $(VENV)/installed-report
	$(BIN)/dragoman build bible-en-es --output bundles/bible-en-es --limit 100 --with-attention --force
	$(BIN)/dragoman build bible-en-es-student --precision int8 --output bundles/bible-en-es-student --limit 100 --force
	$(BIN)/python -m docs.tools.demo bundles/bible-en-es $(HELD_OUT_VERSES) --beams 4 --limit 300 --student bundles/bible-en-es-student
	$(BIN)/dragoman report bundles/bible-en-es --output bundles/bible-en-es.html --checkpoint bible-en-es --no-measurements --force

# One worker for each core, one thread for each worker. Graphs that the tests export are kept in
# .cache, and used again until the exporter changes. Python may keep compiled tests, too.
test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist loadfile --durations 10

# Whole held-out sets of the models that come with Dragoman; the suite has a small part of each.
test-shipped: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m shipped --numprocesses auto --dist loadfile

# Every combination of beam search's settings, for every family; the suite has a third of them.
test-beams: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m combinations --numprocesses auto tests/export/families

# Every fault of the trial of parity, and all right bundles; the suite has one of each kind.
# docs/guides/proof.md has the results.
test-mutants: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m mutants --numprocesses auto tests/mutants

# The pages of reports and of the server in headless Chromium, without a network.
test-browser: $(VENV)/installed-dev
	@test -n "$(DRAGOMAN_BROWSER)" || (echo "test-browser: expected Chromium, found none: apt-get install chromium, or DRAGOMAN_BROWSER=path"; exit 1)
	DRAGOMAN_BROWSER="$(DRAGOMAN_BROWSER)" OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/report tests/serving

# TensorRT-RTX engines of every preset, an encoder alone and a decoder alone; building them needs no GPU.
test-engines: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m engines --numprocesses auto --dist loadgroup

# Model repositories in a real Triton, which is in an environment without PyTorch.
test-triton: $(VENV)/installed-dev $(TRITON_VENV)/installed
	rm -rf bundles/for-triton
	$(BIN)/python -m tests.serving.triton.write_bundles bundles/for-triton
	DRAGOMAN_BUNDLES=bundles/for-triton OMP_NUM_THREADS=1 $(TRITON_BIN)/python -m pytest -m triton \
		--confcutdir tests/serving/triton/on_server tests/serving/triton/on_server

# The job of make demo, a build in each precision, and the tests of the runtime, in the environment $(1).
# What libraries of such different ages find deprecated in each other is no fault of the tests.
define TRY_VERSIONS
$(1)/bin/dragoman build g2p-en --output bundles/$(1:.venv-%=%)/fp32 --limit 100 --force
$(1)/bin/python -m docs.tools.demo bundles/$(1:.venv-%=%)/fp32 $(HELD_OUT)
for precision in int8 int4 fp16 bf16; do \
	$(1)/bin/dragoman build g2p-en --output bundles/$(1:.venv-%=%)/$$precision --precision $$precision --limit 20 --force || exit; \
done
OMP_NUM_THREADS=1 $(1)/bin/python -m pytest --numprocesses auto --dist loadfile -W ignore::DeprecationWarning tests/runtime
endef

# With the lowest versions that pyproject.toml admits (docs/versions.md).
test-lowest: $(LOWEST_VENV)/installed
	$(call TRY_VERSIONS,$(LOWEST_VENV))

# With the newest versions of what pyproject.toml names, pre-releases too, but of the pinned PyTorch.
test-newest: $(NEWEST_VENV)/created
	grep '^torch==' constraints.txt > $(NEWEST_VENV)/torch.txt
	$(NEWEST_VENV)/bin/python $(PIP_INSTALL) --pre --upgrade --upgrade-strategy eager \
		--constraint $(NEWEST_VENV)/torch.txt --editable ".[$(EXTRAS)]" --group runtime-tests
	$(call TRY_VERSIONS,$(NEWEST_VENV))

# With an ONNX Runtime below the lowest, which computes other outputs without an error.
test-versions: $(VENV)/installed-dev $(OLD_VENV)/installed
	DRAGOMAN_OLD_PYTHON=$(abspath $(OLD_VENV)/bin/python) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m versions tests/versions

# Writes constraints-lowest.txt anew. What PyTorch for GPUs requires is left out.
lowest-versions: $(VENV)/installed
	$(INSTALL) --group lowest
	grep '^#' constraints-lowest.txt > constraints-lowest.txt.partial
	$(BIN)/uv pip compile --quiet --resolution lowest-direct --python-version 3.11 --no-annotate --no-header \
		$(foreach extra,$(subst $(COMMA), ,$(EXTRAS)),--extra $(extra)) --group runtime-tests pyproject.toml \
		| grep -vE '^(cuda|nvidia|triton)' >> constraints-lowest.txt.partial
	mv constraints-lowest.txt.partial constraints-lowest.txt

# Downloads Whisper tiny.en (71 MB, kept in .real) and transcribes clips with it.
demo-speech: $(VENV)/installed-speech
	$(BIN)/python -m dragoman.benchmarks.models.real_models tiny.en
	$(BIN)/dragoman build .real/whisper-tiny.en --output bundles/whisper-tiny.en --inputs tests/real/clips --force
	$(BIN)/dragoman run bundles/whisper-tiny.en tests/real/clips/librivox-*.flac
	$(BIN)/dragoman run bundles/whisper-tiny.en tests/real/clips/librivox-0930.flac --words

# Downloads trained weights (300 MB, kept in .real) and compares with the implementations they were made for.
test-real: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m real tests/real

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint docs/kubernetes/Dockerfile

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation site, in site/. Any warning is an error, such as a broken link.
docs: $(DOCS_VENV)/installed
	$(DOCS_BIN)/python -m mkdocs build --strict

# Source distributions and wheels of dragoman and dragoman-models, in dist/, checked; each wheel is built
# from the source distribution. The last check installs the wheel into an empty environment, runs a
# bundle there and prints sizes.
dist: $(VENV)/installed-dist
	rm -rf dist
	$(BIN)/python -m build --quiet --no-isolation
	$(BIN)/python -m build --quiet --no-isolation --outdir dist reference_model/pretrained
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m pytest -m dist tests/packaging

# Replicas of the server and workers on a Ray of this machine, without PyTorch: a bundle is built beside
# them. The conftest.py of all tests needs PyTorch, and is left out;
# warnings are those of Ray about itself.
test-ray: $(VENV)/installed $(RAY_VENV)/installed
	$(BIN)/dragoman build g2p-en --output bundles/g2p-en-ray --limit 1 --force
	DRAGOMAN_BUNDLE=$(abspath bundles/g2p-en-ray) OMP_NUM_THREADS=1 $(RAY_BIN)/python -m pytest -m ray \
		-W ignore --confcutdir tests/serving/ray tests/serving/ray

# Compares with other tools on the same weights, interleaved in one run. They require other versions
# of some libraries, and therefore a separate environment; OpenVINO's tools another one.
test-peers: $(PEERS_VENV)/installed $(OPENVINO_VENV)/installed
	DRAGOMAN_OPENVINO_PYTHON=$(OPENVINO_BIN)/python $(PEERS_BIN)/python -m pytest -m peers \
		tests/benchmarks tests/optimize/fusions tests/export/families/test_ctranslate2.py

COMPARE := $(PEERS_BIN)/python -m dragoman.benchmarks.compare
COMPARE_OPTIONS := --openvino-python $(OPENVINO_BIN)/python --output benchmarks/results

# The latency of greedy decoding.
bench-peers: $(PEERS_VENV)/installed $(OPENVINO_VENV)/installed
	$(COMPARE) greedy $(COMPARE_OPTIONS)

# The same with 4 beams.
bench-beams: $(PEERS_VENV)/installed $(OPENVINO_VENV)/installed
	$(COMPARE) beams $(COMPARE_OPTIONS)

# Throughput at a queue of sentences, each tool arranged as suits it best.
bench-throughput: $(PEERS_VENV)/installed $(OPENVINO_VENV)/installed
	$(COMPARE) throughput $(COMPARE_OPTIONS)

# Latency and throughput as batches grow, and as sources grow longer.
bench-growth: $(PEERS_VENV)/installed $(OPENVINO_VENV)/installed
	$(COMPARE) growth $(COMPARE_OPTIONS)

# A model of 615 million weights: building, loading, memory, steps. An hour, 25 GB of disk.
bench-large: $(PEERS_VENV)/installed $(OPENVINO_VENV)/installed
	$(COMPARE) large $(COMPARE_OPTIONS)

# Encoder-only models: sentence embeddings. Downloads MiniLM-L6 (80 MB, kept in .real).
bench-encoders: $(PEERS_VENV)/installed $(OPENVINO_VENV)/installed
	$(COMPARE) encoding $(COMPARE_OPTIONS)

# Decoder-only models: a model of GPT-2's shape.
bench-language-models: $(PEERS_VENV)/installed $(OPENVINO_VENV)/installed
	$(COMPARE) language-model $(COMPARE_OPTIONS)

# Goodput of servers of texts and of speech under load: Dragoman's, and other tools behind the same HTTP
# layer. Downloads Whisper tiny.en (71 MB, kept in .real).
bench-serving: $(PEERS_VENV)/installed
	$(PEERS_BIN)/python -m dragoman.benchmarks.models.real_models tiny.en
	$(COMPARE) serving --output benchmarks/results
	$(COMPARE) serving --whisper .real/whisper-tiny.en --clips tests/real/clips \
		--output benchmarks/results

# Clients that use and misuse a server for SOAK_MINUTES; every answer is compared with the library's.
SOAK_MINUTES ?= 30
soak: $(VENV)/installed-dev
	$(BIN)/dragoman build g2p-en --output bundles/soak/g2p-en --limit 100 --force
	$(BIN)/python -m dragoman.benchmarks.compare soak bundles/soak/g2p-en --minutes $(SOAK_MINUTES)

# All checks and measurements that need an NVIDIA GPU: nine minutes a call once installed.
# GPU_OPTIONS, such as --resume, are those of the module; docs/gpu.md has them. dry-gpu runs the
# same parts on the processor, which tests the parts.
gpu: $(GPU_VENV)/installed
	-$(GPU_BIN)/python -m dragoman.benchmarks.models.real_models tiny.en
	$(GPU_BIN)/python -m dragoman.benchmarks.gpu --output benchmarks/results $(GPU_OPTIONS)

dry-gpu: $(VENV)/installed-dev
	$(BIN)/python -m dragoman.benchmarks.gpu --device cpu --seconds 1500 --output .dry-gpu

clean:
	rm -rf $(VENV) $(DOCS_VENV) $(PEERS_VENV) $(OPENVINO_VENV) $(RAY_VENV) $(TRITON_VENV) $(GPU_VENV) $(LOWEST_VENV) $(NEWEST_VENV) $(OLD_VENV) bundles build dist site
	rm -rf .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# Marker files: an environment is updated when the files that specify it change.
# Dependency groups need a newer pip than `python -m venv` installs with most versions of Python.
%/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| (echo "Dragoman needs Python 3.11 or newer, found $$($(PYTHON) --version); name another one: make PYTHON=..."; exit 1)
	$(PYTHON) -m venv $*
	$*/bin/python $(PIP_INSTALL) --constraint constraints.txt --upgrade pip
	@touch $@

$(VENV)/installed: $(VENV)/created pyproject.toml constraints.txt
	$(INSTALL) --editable ".[cpu,export,metrics]"
	@touch $@

$(VENV)/installed-speech: $(VENV)/installed
	$(INSTALL) --editable ".[audio,cpu,export,metrics,vad]"
	@touch $@

$(VENV)/installed-report: $(VENV)/installed
	$(INSTALL) --editable ".[cpu,export,metrics,report]"
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(INSTALL) --editable ".[cpu,export,metrics,openvino,report,serve,tensorboard,train,tensorrt-rtx]" --group dev
	@touch $@

$(VENV)/installed-dist: $(VENV)/installed
	$(INSTALL) --group dist
	@touch $@

# Without PyTorch and ONNX: the pages of the API are made by reading the sources, not by importing them.
$(DOCS_VENV)/installed: $(DOCS_VENV)/created pyproject.toml constraints.txt
	$(DOCS_BIN)/python $(PIP_INSTALL) --constraint constraints.txt --editable . --group docs
	@touch $@

# openai-whisper requires Triton, which computes on GPUs only.
$(PEERS_VENV)/installed: $(PEERS_VENV)/created pyproject.toml constraints-peers.txt
	$(PEERS_BIN)/python $(PIP_INSTALL) --constraint constraints-peers.txt --editable ".[cpu,serve]" --group peers
	$(PEERS_BIN)/python $(PIP_INSTALL) --constraint constraints-peers.txt --no-deps openai-whisper
	@touch $@

# Optimum-Intel requires torchvision, which none of these models needs and which does not import
# beside PyTorch for processors.
$(OPENVINO_VENV)/installed: $(OPENVINO_VENV)/created pyproject.toml constraints-openvino.txt
	$(OPENVINO_BIN)/python $(PIP_INSTALL) --constraint constraints-openvino.txt --group peers-openvino
	$(OPENVINO_BIN)/python -m pip uninstall --quiet --yes torchvision
	@touch $@

# Triton's Python backend takes numpy 1 only.
$(TRITON_VENV)/installed: $(TRITON_VENV)/created pyproject.toml constraints-triton.txt
	$(TRITON_BIN)/python $(PIP_INSTALL) --constraint constraints-triton.txt --editable ".[cpu]" --group triton
	@touch $@

$(LOWEST_VENV)/installed: $(LOWEST_VENV)/created pyproject.toml constraints-lowest.txt
	$(LOWEST_VENV)/bin/python $(PIP_INSTALL) --constraint constraints-lowest.txt --editable ".[$(EXTRAS)]" --group runtime-tests
	@touch $@

# Without Dragoman, whose requirements forbid this: tests put src on PYTHONPATH.
$(OLD_VENV)/installed: $(OLD_VENV)/created constraints.txt
	grep -v '^onnxruntime' constraints.txt > $(OLD_VENV)/constraints.txt
	$(OLD_VENV)/bin/python $(PIP_INSTALL) --constraint $(OLD_VENV)/constraints.txt onnxruntime==1.27.0 numpy tokenizers click rich
	@touch $@

$(RAY_VENV)/installed: $(RAY_VENV)/created pyproject.toml constraints-ray.txt
	$(RAY_BIN)/python $(PIP_INSTALL) --constraint constraints-ray.txt --editable ".[cpu,ray]" --group ray-tests
	@touch $@

# onnxruntime-gpu, PyTorch with CUDA, and the full TensorRT where NVIDIA's index can be reached.
$(GPU_VENV)/installed: $(GPU_VENV)/created pyproject.toml constraints.txt
	$(GPU_BIN)/python $(PIP_INSTALL) --constraint constraints.txt \
		--editable ".[audio,cuda,export,serve,tensorrt-rtx]" --group gpu-peers
	-$(GPU_BIN)/python $(PIP_INSTALL) tensorrt
	@touch $@
