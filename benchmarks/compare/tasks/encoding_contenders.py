"""Contenders of sentence embeddings, and the texts to encode.

This module does not import torch at the top, since contenders without PyTorch import it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ...peers import onnx_encoders, openvino
from ...peers.interface import Encode
from ...processes import HERE, Interpreter
from ..rounds import Contender, Perform, unchanged
from .text_contenders import REFERENCE, dragoman_contenders, peers

SENTENCE_TRANSFORMERS = "sentence-transformers"
ROOT = Path(__file__).resolve().parents[3]
PROSE, OTHER_PROSE = ROOT / "LICENSE", ROOT / "README.md"
"""What is encoded, and what tools look at to quantize."""
CALIBRATION_TEXTS, CALIBRATION_LENGTH = 64, 48
TOKENS_OF_A_TURN, MOST_CALLS = 4096, 64

Vectors = NDArray[np.float32]


class Calls(NamedTuple):
    """A work item: several calls with different texts, since one may be too short to time.

    Attributes:
        length: tokens of every text, including special tokens
        texts: texts of each call, of equal number
    """

    length: int
    texts: list[list[str]]

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

    Failures of missing tools are reported. The reference is sentence-transformers with PyTorch in
    fp32, which is also a contender under its own name.

    Args:
        calibration: calibration texts, which are not measured
        openvino_in: interpreter with Optimum-Intel and sentence-transformers
    """
    from ...peers import optimum_onnx, sentence_transformers

    graphs: dict[str, Callable[[Path, int], Encode]] = {
        "ONNX Runtime": onnx_encoders.load_onnxruntime,
        "fastembed": onnx_encoders.load_fastembed,
        "Optimum-ONNX": optimum_onnx.load_encoder,
    }
    return [
        Contender(
            REFERENCE,
            unchanged,
            performing(partial(sentence_transformers.load_torch, mode="fp32")),
            needs_torch=True,
            required=True,
            timed=False,
        ),
        *dragoman_contenders(performing(load_bundle), calibration=calibration),
        *(
            contender
            for tool, load in graphs.items()
            for contender in peers(
                tool,
                optimum_onnx.GRAPH_VARIANTS,
                lambda variant: partial(
                    optimum_onnx.prepare_graph, kind="FeatureExtraction", variant=variant
                ),
                lambda _, load=load: performing(load),  # type: ignore[misc]
                needs_torch=tool == "Optimum-ONNX",
            )
            # For variants of the graph, one tool is enough.
            if tool == "ONNX Runtime" or not contender.name.endswith("optimized")
        ),
        *peers(
            "OpenVINO",
            openvino.MODES,
            lambda mode: partial(openvino.prepare_encoder, mode=mode, calibration=calibration),
            lambda mode: performing(partial(openvino.load_encoder, mode=mode)),
            interpreter=openvino_in,
        ),
        *(
            contender
            for backend, mode, prepare, load in sentence_transformers.backends(calibration)
            for contender in peers(
                f"{SENTENCE_TRANSFORMERS} {backend}",
                [mode],
                lambda _, prepare=prepare: prepare,  # type: ignore[misc]
                lambda _, load=load: performing(load),  # type: ignore[misc]
                needs_torch=True,
                interpreter=openvino_in if backend == "OpenVINO" else HERE,
            )
        ),
    ]


def load_bundle(directory: Path, threads: int) -> Encode:
    """Load a bundle with Dragoman's runtime."""
    from dragoman.runtime import load

    model = load(directory, threads=threads)
    return lambda texts: model.encode(list(texts))


def performing(
    load: Callable[[Path, int], Encode],
) -> Callable[[Path, int], Perform[Calls, Vectors]]:
    """Return the `load` of a contender that runs the calls of a work item."""
    return partial(_load_to_perform, load=load)


def _load_to_perform(
    directory: Path, threads: int, *, load: Callable[[Path, int], Encode]
) -> Perform[Calls, Vectors]:
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # for the tokenizers of all tools
    encode = load(directory, threads)
    return lambda calls: np.concatenate([encode(texts) for texts in calls.texts])
