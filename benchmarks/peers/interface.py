"""The common interface of all tools: decode tokens, transcribe a clip, encode texts.

For tools that only run the graph of an encoder, it also has tokenization and mean pooling.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from dragoman.errors import DragomanError

LANGUAGE = "en"
"""The language of all clips, which tools for speech get as an option."""


class Batch(NamedTuple):
    """A batch of sources to decode."""

    sources: list[list[int]]
    """Token ids, without padding."""
    new_tokens: int
    """Tokens that every row generates; the end token is ignored."""
    num_beams: int = 1
    """Beams, ranked by log-probability / length; all take every step; 1: greedy decoding."""


Rows = list[list[int]]
"""Generated token ids of each source, without the start token; of beams, the best."""

Generate = Callable[[Batch], Rows]


class Stages(NamedTuple):
    """Separate times of encoder and decoder."""

    encoder: float
    decoder: float
    """Both in seconds; the decoder includes the prompt."""
    tokens: int


Way = Literal["greedy", "published", "together"]
"""How a recording is transcribed: greedily without timestamps; as openai-whisper does by default,
as far as the tool can, silence included; or in parts between pauses that are decoded at once."""
WAYS: tuple[Way, ...] = get_args(Way)


class Transcriber(NamedTuple):
    """A loaded speech model, which transcribes in one way."""

    transcribe: Callable[[Any], str]
    """Reads and transcribes an audio file with the tool's standard call."""
    stages: Callable[[Path], Stages] | None = None
    """Transcribes a file greedily, and times encoder and decoder separately, if the tool can."""


Text = str | tuple[str, str]

Encode = Callable[..., NDArray[np.float32]]
"""Encodes texts as one batch: an embedding for each text, [N, D], or a score for each pair, [N]."""


def in_batches(
    call: Callable[[list[Any]], Iterable[Any]], items: Sequence[Any], most: int, size: Any = len
) -> list[Any]:
    """Return what a call finds for each item, in their order, given batches of similar size.

    The largest items come first; a batch has at most `most`.
    """
    found: dict[int, Any] = {}
    order = sorted(range(len(items)), key=lambda n: -size(items[n]))
    for first in range(0, len(order), most):
        batch = order[first : first + most]
        found |= zip(batch, call([items[n] for n in batch]), strict=True)
    return [found[n] for n in range(len(items))]


def import_library(name: str, *, group: str = "peers") -> Any:
    """Import an optional module of a dependency group; raise DragomanError if it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = f"cannot import {name} ({error}): pip install --group {group}"
        raise DragomanError(hint) from error


def silence() -> None:
    """Silence the warnings of this process, which exports and tools print many of."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def session_options(threads: int) -> Any:
    """Return ONNX Runtime's options with a number of threads."""
    options = import_library("onnxruntime").SessionOptions()
    options.intra_op_num_threads = threads
    return options


Inputs = dict[str, NDArray[np.int64]]
"""[B, S] each, by the names of Hugging Face's exports."""


def load_tokenizer(directory: Path) -> Callable[[Sequence[Text]], Inputs]:
    """Load the tokenizer of a checkpoint; texts are padded to the longest."""
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(directory / "tokenizer.json"))
    library.no_truncation()
    library.enable_padding()

    def tokenize(texts: Sequence[Text]) -> Inputs:
        encodings = library.encode_batch(list(texts))
        columns = zip(*((e.ids, e.attention_mask, e.type_ids) for e in encodings), strict=True)
        ids, mask, types = (np.array(rows, np.int64) for rows in columns)
        return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}

    return tokenize


Kind = Literal[
    "Seq2SeqLM", "CausalLM", "SpeechSeq2Seq", "FeatureExtraction", "SequenceClassification"
]
"""The end of the name of a model class of Optimum, such as `OVModelForCausalLM`."""


def encoder_kind(checkpoint: Path) -> Kind:
    """Return the kind of an encoder-only model: of embeddings, or of a cross-encoder."""
    embeds = (checkpoint / "modules.json").exists()
    return "FeatureExtraction" if embeds else "SequenceClassification"


def vectors_or_scores(output: NDArray[np.float32], mask: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return normalized means [B, D] of hidden states [B, S, D], or probabilities [B] of logits."""
    if output.ndim == 2:
        return (1 / (1 + np.exp(-output[:, 0]))).astype(np.float32)
    sums = (mask[:, None].astype(np.float32) @ output)[:, 0]
    vectors: NDArray[np.float32] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    return vectors
