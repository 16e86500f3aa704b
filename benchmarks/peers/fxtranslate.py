"""fxtranslate: students with recurrent decoders, in Marian's files with weights of 8 bits.

It translates texts, one after the other on one thread. A token's text is a word of its own here, so
that tokens survive its tokenizer.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from .interface import Batch, Generate, Rows, import_library

MODEL, VOCABULARY, SHORTLIST = "model.bin", "vocab.spm", "lex.s2t.bin"
END, UNKNOWN = 0, 1
BIAS = "decoder_ff_logit_out_b"
INTEGERS, FLOATS, BYTES = 0x4101, 0x404, 0x101
"""Types of items in a file: intgemm's 8 bits in the form of Firefox's models, float32, and text."""
ACTIVATION = 16.0
"""What activations are multiplied with before they are rounded to 8 bits."""
NEVER = -1e4
"""Added to the logit of a token that is not to be generated."""
PRODUCT = re.compile(r"Wemb|_W[a-z\d]?$")
"""Names of weights that are rounded: matrices of products, and embeddings."""

Item = tuple[str, int, tuple[int, ...], bytes]
"""The name, type, shape and data of a part of a file."""

OPTIONS = {
    "version": "v1.12.0",
    "type": "transformer",
    "dec-cell": "ssru",
    "tied-embeddings-all": "true",
    "transformer-decoder-autoreg": "rnn",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
}


def prepare(source: Path, directory: Path) -> Path:
    """Write a checkpoint with a recurrent decoder as Marian would; outputs do not end."""
    from dragoman.export.families.marian_nmt import ACTIVATIONS, weight_name
    from dragoman.reference_model import load_checkpoint

    model = load_checkpoint(source)
    config, activations = model.config, {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    options = OPTIONS | {
        "dim-emb": config.d_model,
        "dim-vocabs": [config.start_token_id] * 2,
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "transformer-heads": config.num_heads,
        "transformer-dim-ffn": config.d_ff,
        "transformer-ffn-activation": activations[config.activation],
    }
    text = "".join(f"{name}: {value}\n" for name, value in options.items()).encode() + b"\0"
    scale = np.full((1, 1), ACTIVATION, "<f4")
    items: list[Item] = [("special:model.yml", BYTES, (len(text),), text)]
    items.append(("none_QuantMultA", FLOATS, (1, 1), scale.tobytes()))
    for name, parameter in model.named_parameters():
        values, theirs = parameter.detach().numpy(), weight_name(name, ("Wemb", "Wemb"))
        if theirs in ("Wemb", BIAS):  # the token that starts is not in the file
            values = values[: config.start_token_id].copy()
        if theirs == BIAS:
            values[[END, UNKNOWN]] += NEVER
        if PRODUCT.search(theirs):
            factor = np.float32(127) / np.abs(values).max()
            integers = np.rint(values * factor).astype(np.int8).tobytes() + factor.tobytes()
            shape = values.shape if theirs == "Wemb" else values.shape[::-1]
            items.append((theirs, INTEGERS, shape, integers))
            items.append((f"{theirs}_QuantMultA", FLOATS, (1, 1), scale.tobytes()))
        elif "positions" not in name:
            items.append((theirs, FLOATS, (1, len(values)), values.astype("<f4").tobytes()))
    directory.mkdir()
    (directory / MODEL).write_bytes(_file(items))
    (directory / VOCABULARY).write_bytes(_vocabulary(config.start_token_id))
    return directory


def _file(items: Sequence[Item]) -> bytes:
    """Lay out items as in marian-nmt/marian-dev, src/common/binary.cpp."""
    head, names, shapes, data = struct.pack("<2Q", 1, len(items)), b"", b"", b""
    for name, kind, shape, content in items:
        padded = content + bytes(-len(content) % 256)
        head += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(padded))
        names += name.encode() + b"\0"
        shapes += struct.pack(f"<{len(shape)}i", *shape)
        data += padded
    head += names + shapes
    skipped = -(len(head) + 8) % 256
    return head + struct.pack("<Q", skipped) + bytes(skipped) + data


def _vocabulary(size: int) -> bytes:
    """Return a SentencePiece model whose pieces are the words w2, w3 and so on."""
    library = import_library("sentencepiece.sentencepiece_model_pb2")
    model = library.ModelProto()
    for token in range(size):
        piece = model.pieces.add(piece=f"\u2581w{token}", score=-1.0)
        if token in (END, UNKNOWN):
            piece.piece = {END: "</s>", UNKNOWN: "<unk>"}[token]
            piece.type = {END: piece.CONTROL, UNKNOWN: piece.UNKNOWN}[token]
    model.trainer_spec.unk_id, model.trainer_spec.eos_id = UNKNOWN, END
    model.trainer_spec.bos_id = model.trainer_spec.pad_id = -1
    model.normalizer_spec.name = "identity"
    data: bytes = model.SerializeToString()
    return data


def write_shortlist(lists: Sequence[Sequence[int]], always: int, directory: Path) -> None:
    """Add a shortlist to what `prepare` wrote.

    Args:
        lists: the tokens that each source token allows
        always: number of first tokens of the vocabulary that all sources allow
    """
    from dragoman.export.shortlists import HEADER, MAGIC, checksum

    starts = [*accumulate(map(len, lists), initial=0)]
    sizes = always, max(map(len, lists)), len(starts), starts[-1]
    data = HEADER.pack(MAGIC, 0, *sizes) + np.array(starts, "<u8").tobytes()
    data += np.concatenate(lists).astype("<u4").tobytes()
    data = data[:8] + struct.pack("<Q", checksum(data)) + data[16:]
    (directory / SHORTLIST).write_bytes(data)


_translator: Any = None
"""That of this process."""


def _start(files: Sequence[bytes]) -> None:
    global _translator  # it cannot be sent between threads or processes
    _translator = import_library("fxtranslate").Translator(*files)


def _translate(texts: list[str]) -> Rows:
    texts = [_translator.translate(text) for text in texts]
    return [[int(word.removeprefix("w")) for word in text.split()] for text in texts]


def load(directory: Path, threads: int) -> Generate:
    """Load what `prepare` wrote; of several sources, each thread is a process of its own.

    An output has 2 * S + 6 tokens for a source of S, whatever is requested.
    """
    vocabulary, shortlist = (directory / VOCABULARY).read_bytes(), directory / SHORTLIST
    files = [(directory / MODEL).read_bytes(), vocabulary, vocabulary]
    if shortlist.exists():
        files.append(shortlist.read_bytes())
    _start(files)
    processes = ProcessPoolExecutor(threads, initializer=_start, initargs=(files,))

    def generate(batch: Batch) -> Rows:
        texts = [" ".join(f"w{token}" for token in source) for source in batch.sources]
        if min(threads, len(texts)) == 1:
            return _translate(texts)
        rows: list[list[int]] = [[]] * len(texts)
        shares = [texts[number::threads] for number in range(threads)]
        for number, share in enumerate(processes.map(_translate, shares)):
            rows[number::threads] = share
        return rows

    return generate
