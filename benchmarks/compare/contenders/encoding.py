"""Contenders of sentence embeddings, and the texts to encode."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ...peers import interface, openvino
from ...peers.interface import Encode
from ...processes import HERE, Interpreter
from ..rounds import Contender, Perform, unchanged
from .text import dragoman_contenders, peers, reference

ROOT = Path(__file__).resolve().parents[3]
PROSE, OTHER_PROSE = ROOT / "LICENSE", ROOT / "README.md"
"""What is encoded, and what tools look at to quantize."""
CALIBRATION_TEXTS, CALIBRATION_LENGTH = 64, 48
TOKENS_OF_A_TURN, MOST_CALLS = 4096, 64
MEASURED = "measured"
"""The name under which fastembed knows the model."""

Vectors = NDArray[np.float32]


class Calls(NamedTuple):
    """A work item: several calls with different texts, since one may be too short to time."""

    length: int
    """Tokens of every text, including special tokens."""
    texts: list[list[str]]
    """Texts of each call, of equal number."""

    @property
    def batch_size(self) -> int:
        """The number of texts per call."""
        return len(self.texts[0])

    def __str__(self) -> str:
        return f"{self.length} tokens, batch {self.batch_size}"


EncodingContender = Contender[Calls, Vectors]


def calls(prose: str, tokenizer: Tokenizer, length: int, batch_size: int) -> Calls:
    """Return a work item, the same for the same prose."""
    most = max(1, min(MOST_CALLS, TOKENS_OF_A_TURN // (length * batch_size)))
    texts = pieces(prose, tokenizer, length)
    return Calls(length, [list(islice(texts, batch_size)) for _ in range(most)])


def calibration_texts(tokenizer: Tokenizer) -> list[str]:
    """Return texts for tools to look at as they quantize, which are not measured."""
    texts = pieces(OTHER_PROSE.read_text(encoding="utf-8"), tokenizer, CALIBRATION_LENGTH)
    return [*islice(texts, CALIBRATION_TEXTS)]


def pieces(prose: str, tokenizer: Tokenizer, length: int) -> Iterator[str]:
    """Yield successive texts of exactly `length` tokens, each from the beginning of a word.

    The length includes special tokens. The iterator is infinite: each pass over the prose starts
    one token later.
    """
    encoding = tokenizer.encode(prose, add_special_tokens=False)
    size = length - tokenizer.num_special_tokens_to_add(is_pair=False)
    words, spans = encoding.word_ids, encoding.offsets
    start = laps = 0
    while True:
        while 0 < start < len(words) and words[start] == words[start - 1]:
            start += 1
        if start + size > len(words):
            laps += 1
            start = laps % (len(words) - size + 1)
            continue
        end = start + size
        text = prose[spans[start][0] : spans[end - 1][1]]
        assert len(tokenizer.encode(text).ids) == length
        yield text
        start = end


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint, without truncation and padding."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def contenders(
    calibration: Sequence[str], *, openvino_in: Interpreter = HERE
) -> list[EncodingContender]:
    """Return the reference first, peers last.

    The reference is sentence-transformers with PyTorch in fp32, which is also a contender under its
    own name.

    Args:
        calibration: calibration texts, which are not measured
        openvino_in: interpreter with Optimum-Intel and sentence-transformers
    """
    from ...peers import optimum_onnx
    from ...peers import sentence_transformers as library

    tools = partial(peers, adapt=load_to_perform)
    with_torch = partial(tools, needs_torch=True)
    prepare_graph = partial(optimum_onnx.prepare, kind="FeatureExtraction")
    name = "sentence-transformers"
    return [
        reference(partial(load_to_perform, load=library.load_torch), timed=False),
        *dragoman_contenders(partial(load_to_perform, load=load_bundle), calibration=calibration),
        *tools("ONNX Runtime", optimum_onnx.GRAPH_MODES, prepare_graph, load_onnxruntime),
        # For variants of the graph, one tool is enough.
        *tools("fastembed", library.ONNX_MODES, prepare_graph, load_fastembed),
        *with_torch("Optimum-ONNX", library.ONNX_MODES, prepare_graph, optimum_onnx.load_encoder),
        *tools(
            "OpenVINO",
            openvino.MODES,
            partial(openvino.prepare_encoder, calibration=calibration),
            openvino.load_encoder,
            interpreter=openvino_in,
        ),
        *with_torch(f"{name} PyTorch", library.TORCH_MODES, unchanged, library.load_torch),
        *with_torch(f"{name} ONNX", library.ONNX_MODES, library.prepare_onnx, library.load_onnx),
        *with_torch(
            f"{name} OpenVINO",
            openvino.MODES,
            partial(library.prepare_openvino, calibration=calibration),
            library.load_openvino,
            interpreter=openvino_in,
        ),
    ]


def load_bundle(directory: Path, threads: int) -> Encode:
    """Load a bundle with Dragoman's runtime."""
    from dragoman.runtime import load

    model = load(directory, threads=threads)
    return lambda texts: model.encode(list(texts))


def load_onnxruntime(directory: Path, threads: int) -> Encode:
    """Load Optimum's graph and `tokenizer.json` into ONNX Runtime, without PyTorch.

    Only tokenization and mean pooling are added, the minimum for an encoder.

    All optimizations are on, which is the default.
    """
    library = interface.import_library("onnxruntime")
    session = library.InferenceSession(
        str(directory / "model.onnx"),
        interface.session_options(threads),
        providers=["CPUExecutionProvider"],
    )
    names = [put.name for put in session.get_inputs()]
    tokenize = interface.load_tokenizer(directory)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        inputs = tokenize(texts)
        hidden = session.run(["last_hidden_state"], {name: inputs[name] for name in names})[0]
        return interface.mean_vectors(hidden, inputs["attention_mask"])

    return encode


def load_fastembed(directory: Path, threads: int) -> Encode:
    """Load Optimum's graph and its tokenizer into fastembed; embeddings are means."""
    library = interface.import_library("fastembed")
    description = interface.import_library("fastembed.common.model_description")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    library.TextEmbedding.add_custom_model(
        MEASURED,
        pooling=description.PoolingType.MEAN,
        normalization=True,
        sources=description.ModelSource(hf=MEASURED),  # never downloaded
        dim=config["hidden_size"],
        model_file="model.onnx",
    )
    model = library.TextEmbedding(MEASURED, threads=threads, specific_model_path=str(directory))

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        return np.stack(list(model.embed(texts, batch_size=len(texts))))

    return encode


def load_to_perform(
    directory: Path, threads: int, *, load: Callable[[Path, int], Encode]
) -> Perform[Calls, Vectors]:
    """Load a tool that runs the calls of a work item."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # for the tokenizers of all tools
    encode = load(directory, threads)
    return lambda calls: np.concatenate([encode(texts) for texts in calls.texts])
