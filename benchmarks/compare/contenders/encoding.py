"""Contenders of sentence embeddings and of reranking, and the texts to encode."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ...peers import interface, openvino
from ...peers.interface import Encode, Text
from ...processes import HERE, Interpreter
from ..rounds import Contender, Perform, unchanged
from .text import BUNDLES, DRAGOMAN, BundleKind, dragoman_contenders, peers, reference

ROOT = Path(__file__).resolve().parents[3]
PROSE, OTHER_PROSE = ROOT / "LICENSE", ROOT / "README.md"
"""What is encoded, and what tools look at to quantize."""
CALIBRATION_TEXTS, CALIBRATION_LENGTH = 64, 48
TOKENS_OF_A_TURN, MOST_CALLS = 4096, 64
QUERY = "Which rights does the license grant?"
"""What reranked documents are compared with."""
QUEUE_LENGTHS, MEDIAN_LENGTH, SPREAD = (8, 256), 48, 0.8
"""Tokens of the texts of a queue: the shortest and longest, and the distribution's parameters."""
QUEUE_BATCH = 32
"""Texts that tools take of a queue at once, sentence-transformers' default."""
ON_OPENVINO = tuple(
    BundleKind(f"{DRAGOMAN} openvino {precision}", "openvino", precision)
    for precision in ("fp32", "int8")
)
EMBEDDING_ONLY = ("fastembed", "Optimum-ONNX")
"""Tools that do not take part in reranking."""

Vectors = NDArray[np.float32]


class Calls(NamedTuple):
    """A work item: several calls with different texts, since one may be too short to time."""

    length: int | None
    """Tokens of every text or pair, including special tokens; None: a queue of unlike lengths."""
    texts: list[list[Text]]
    """Texts of each call, of equal number; a queue is one call."""

    @property
    def batch_size(self) -> int:
        """The number of texts per call."""
        return len(self.texts[0])

    def __str__(self) -> str:
        return case_name(self.length, self.batch_size)


def case_name(length: int | None, size: int) -> str:
    """Return the name of a work item."""
    return f"queue of {size:,} texts" if length is None else f"{length} tokens, batch {size}"


EncodingContender = Contender[Calls, Vectors]


def calls(prose: str, tokenizer: Tokenizer, length: int, batch_size: int, query: str = "") -> Calls:
    """Return a work item, the same for the same prose."""
    most = max(1, min(MOST_CALLS, TOKENS_OF_A_TURN // (length * batch_size)))
    texts = pieces(prose, tokenizer, repeat(length), query)
    return Calls(length, [list(islice(texts, batch_size)) for _ in range(most)])


def queue(prose: str, tokenizer: Tokenizer, count: int, query: str = "") -> Calls:
    """Return one call with texts of log-normally distributed lengths, the same for the same prose.

    Tools that form batches themselves get all of it. For others, the texts are sorted by their
    characters and cut into batches of `QUEUE_BATCH`, which is timed.
    """
    drawn = np.random.default_rng(0).lognormal(np.log(MEDIAN_LENGTH), SPREAD, count)
    least = len(tokenizer.encode(query, "a").ids) if query else 0
    lengths = np.maximum(drawn.clip(*QUEUE_LENGTHS).astype(int), least).tolist()
    return Calls(None, [list(pieces(prose, tokenizer, lengths, query))])


def calibration_texts(tokenizer: Tokenizer, query: str = "") -> list[Text]:
    """Return texts for tools to look at as they quantize, which are not measured."""
    prose = OTHER_PROSE.read_text(encoding="utf-8")
    return [*pieces(prose, tokenizer, repeat(CALIBRATION_LENGTH, CALIBRATION_TEXTS), query)]


def pieces(
    prose: str, tokenizer: Tokenizer, lengths: Iterable[int], query: str = ""
) -> Iterator[Text]:
    """Yield successive texts of exactly `lengths` tokens, each from the beginning of a word.

    The lengths include special tokens, and those of a query that is the first of two texts. Each
    pass over the prose starts one token later.
    """
    encoding = tokenizer.encode(prose, add_special_tokens=False)
    words, spans = encoding.word_ids, encoding.offsets
    others = len((tokenizer.encode(query, "") if query else tokenizer.encode("")).ids)
    start = laps = 0
    for length in lengths:
        size = length - others
        while start + size > len(words) or (start > 0 and words[start] == words[start - 1]):
            start += 1
            if start + size > len(words):
                laps += 1
                start = laps % (len(words) - size + 1)
        end = start + size
        text = prose[spans[start][0] : spans[end - 1][1]]
        found = (query, text) if query else text
        assert len(tokenizer.encode(*([found] if isinstance(found, str) else found)).ids) == length
        yield found
        start = end


def load_tokenizer(directory: Path) -> Tokenizer:
    """Load the tokenizer of a checkpoint, without truncation and padding."""
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def contenders(
    calibration: Sequence[Text], *, openvino_in: Interpreter = HERE, rerank: bool = False
) -> list[EncodingContender]:
    """Return the reference first, peers last.

    The reference is sentence-transformers with PyTorch in fp32, which is also a contender under its
    own name.
    """
    from ...peers import optimum_onnx
    from ...peers import sentence_transformers as library

    tools = partial(peers, adapt=load_to_perform)
    prepare_graph, name = partial(optimum_onnx.prepare, kind=None), "sentence-transformers"
    adapt = partial(load_to_perform, queue={"batch_size": QUEUE_BATCH})
    theirs = partial(peers, adapt=adapt, needs_torch=True)
    with_optimum = prepare_graph, optimum_onnx.load_encoder
    ours = partial(load_to_perform, load=load_bundle, queue={})
    calibrated = partial(openvino.prepare_encoder, calibration=calibration)
    with_onnx = partial(library.prepare, backend="onnx", prepare_graph=prepare_graph)
    with_openvino = partial(library.prepare, backend="openvino", prepare_graph=calibrated)
    other: dict[str, Any] = {"interpreter": openvino_in}
    everyone = [
        reference(partial(adapt, load=library.load_torch), timed=False),
        *dragoman_contenders(ours, (*BUNDLES, *ON_OPENVINO), calibration=calibration),
        *tools("ONNX Runtime", optimum_onnx.GRAPH_MODES, prepare_graph, load_onnxruntime),
        # For variants of the graph, one tool is enough.
        *tools("fastembed", library.ONNX_MODES, prepare_graph, load_fastembed),
        *tools("Optimum-ONNX", library.ONNX_MODES, *with_optimum, needs_torch=True),
        *tools("OpenVINO", openvino.MODES, calibrated, openvino.load_encoder, **other),
        *theirs(f"{name} PyTorch", library.TORCH_MODES, unchanged, library.load_torch),
        *theirs(f"{name} ONNX", library.ONNX_MODES, with_onnx, library.load_onnx),
        *theirs(f"{name} OpenVINO", openvino.MODES, with_openvino, library.load_openvino, **other),
    ]
    return [c for c in everyone if not (rerank and c.name.startswith(EMBEDDING_ONLY))]


def load_bundle(directory: Path, threads: int) -> Encode:
    """Load a bundle with Dragoman's runtime."""
    from dragoman.runtime import load

    model = load(directory, threads=threads)

    def encode(texts: Sequence[Any]) -> NDArray[np.float32]:
        if isinstance(texts[0], str):
            return model.encode(list(texts))
        ranked = model.rerank(texts[0][0], [document for _, document in texts])
        scores = {document.index: document.score for document in ranked}
        return np.array([scores[index] for index in range(len(texts))], np.float32)

    return encode


def load_onnxruntime(directory: Path, threads: int) -> Encode:
    """Load Optimum's graph and `tokenizer.json` into ONNX Runtime, with only mean pooling added."""
    library = interface.import_library("onnxruntime")
    given = str(directory / "model.onnx"), interface.session_options(threads)
    session = library.InferenceSession(*given, providers=["CPUExecutionProvider"])
    names = [put.name for put in session.get_inputs()]
    tokenize = interface.load_tokenizer(directory)

    def encode(texts: Sequence[Text]) -> NDArray[np.float32]:
        inputs = tokenize(texts)
        output = session.run(None, {name: inputs[name] for name in names})[0]
        return interface.vectors_or_scores(output, inputs["attention_mask"])

    return encode


def load_fastembed(directory: Path, threads: int) -> Encode:
    """Load Optimum's graph and its tokenizer into fastembed; embeddings are means."""
    library = interface.import_library("fastembed")
    description = interface.import_library("fastembed.common.model_description")
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    name = "measured"
    library.TextEmbedding.add_custom_model(
        name,
        pooling=description.PoolingType.MEAN,
        normalization=True,
        sources=description.ModelSource(hf=name),  # never downloaded
        dim=config["hidden_size"],
        model_file="model.onnx",
    )
    model = library.TextEmbedding(name, threads=threads, specific_model_path=str(directory))
    return lambda texts: np.stack(list(model.embed(texts, batch_size=len(texts))))


def load_to_perform(
    directory: Path,
    threads: int,
    *,
    load: Callable[[Path, int], Encode],
    queue: Mapping[str, Any] | None = None,
) -> Perform[Calls, Vectors]:
    """Load a tool that runs the calls of a work item.

    A tool that forms batches itself has keyword arguments of the call for a `queue`.
    """
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # for the tokenizers of all tools
    encode = load(directory, threads)

    def perform(calls: Calls) -> Vectors:
        if calls.length is not None:
            return np.concatenate([encode(texts) for texts in calls.texts])
        (texts,) = calls.texts
        if queue is not None:
            return encode(texts, **queue)
        sized = partial(interface.in_batches, size=lambda text: len("".join(text)))
        return np.stack(sized(encode, texts, QUEUE_BATCH))

    return perform
