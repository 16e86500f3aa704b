"""Bodies that routes take, and what errors of each look like."""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import soundfile

from dragoman.runtime.serving.apis.bodies import OPTION_NAMES

from ..speech_models import RATE, noise
from .hostile_bodies import Body, Part

IsError = Callable[[Any], bool]
"""Whether an answer has a protocol's form of an error."""


def is_native(error: Any) -> bool:
    return error.keys() == {"error", "code"} and isinstance(error["error"], str)


def is_typed(error: Any) -> bool:
    """Text-embeddings-inference's, with the code of the native one."""
    kinds = {"Validation", "Backend", "Overloaded", "Unhealthy"}
    return error.pop("error_type") in kinds and is_native(error)


def is_plain(error: Any) -> bool:
    """KServe's, and LibreTranslate's."""
    return error.keys() == {"error"} and isinstance(error["error"], str)


def is_openai(error: Any) -> bool:
    inner = error["error"]
    known = inner.keys() == {"message", "type", "param", "code"}
    return error.keys() == {"error"} and known and isinstance(inner["message"], str)


def _wav() -> bytes:
    file = io.BytesIO()
    soundfile.write(file, noise(0.3, 1), RATE, format="WAV", subtype="FLOAT")
    return file.getvalue()


WAV = _wav()
CLIP = base64.b64encode(WAV).decode()
LETTERS: Body = {"model": "letters-en-xx", "source": "dragoman"}
SAMPLED: Body = LETTERS | {
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 5,
    "top_p": 0.9,
    "min_p": 0.01,
    "seed": 3,
    "prefix": "D R",
    "min_new_tokens": 1,
    "max_new_tokens": 5,
    "alternatives": 2,
    "max_new_tokens_per_source_token": 2.0,
    "timeout": 30,
    "must_not_contain": ["T", [3, 4]],
}
BEAMS: Body = {
    "model": "letters-en-xx",
    "sources": ["a", "it", [1, 2]],
    "num_beams": 3,
    "pieces": True,
    "num_return_sequences": 2,
    "length_penalty": 0.5,
    "early_stopping": "never",
    "must_contain": ["AE"],
    "must_not_contain": ["T"],
}
SPEECH: Body = {"model": "speech", "audio": CLIP, "language": "de", "task": "transcribe"}
PROMPT: Body = {"model": "verses", "prompt": "In the", "max_tokens": 4, "temperature": 0}
TEXT = {"name": "text", "datatype": "BYTES", "shape": [2], "data": ["a", "it"]}
PAIRS = {"name": "text", "datatype": "BYTES", "shape": [1, 2], "data": [["the man", "paris ."]]}
NUMBERS = {"name": "text", "datatype": "FP32", "shape": [2], "data": [1.5, 2]}
OUTPUTS = [{"name": "text"}, {"name": "score", "parameters": {"binary_data": True}}]


class Route(NamedTuple):
    """
    Attributes:
        bodies: valid ones; the first is answered the same every time
        extras: names of further fields
    """

    path: str
    is_error: IsError
    bodies: tuple[Body, ...]
    extras: tuple[str, ...] = ()


ROUTES = {
    "generate": Route(
        "/v1/generate",
        is_native,
        (LETTERS, SAMPLED, BEAMS, SPEECH, {"model": "verses", "source": "In the"}),
        (*sorted(OPTION_NAMES), "audio", "sources", "stream", "pieces", "timeout"),
    ),
    "stream": Route(
        "/v1/generate",
        is_native,
        (LETTERS | {"stream": True}, SAMPLED | {"stream": True, "pieces": True}),
        (*sorted(OPTION_NAMES), "audio", "sources", "pieces", "timeout"),
    ),
    "encode": Route(
        "/v1/encode",
        is_native,
        ({"model": "vectors", "texts": ["the man", "paris"], "truncate": True, "timeout": 30},),
        ("dimensions", "prompt_name"),
    ),
    "classify": Route(
        "/v1/classify",
        is_native,
        ({"model": "classes", "texts": ["the man", ["a", "b"], [2, 9, 3]]},),
        ("truncate", "timeout", "top"),
    ),
    "zero-shot": Route(
        "/v1/classify",
        is_native,
        (
            {"model": "classes", "texts": ["the man"], "labels": ["food", "paris"]},
            {"model": "classes", "texts": ["a", "b"], "labels": ["a"], "multi_label": True},
            {"model": "classes", "texts": ["a"], "labels": ["a"], "hypothesis_template": "is {}"},
        ),
    ),
    **{
        f"rerank at {path}": Route(
            path,
            is_typed,
            (
                {"model": "relevance", "query": "the man", "documents": ["paris", {"text": "a"}]},
                {"model": "relevance", "query": "a", "texts": ["paris", "b"], "raw_scores": True},
            ),
            ("top_n", "return_documents", "return_text", "truncate", "timeout"),
        )
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    },
    "embed": Route(
        "/embed",
        is_typed,
        ({"model": "vectors", "inputs": ["the man", "paris"], "dimensions": 5},),
        ("normalize", "truncate", "prompt_name", "encoding_format", "truncation_direction"),
    ),
    "root": Route(
        "/",
        is_typed,
        (
            {"model": "vectors", "inputs": "the man", "dimensions": 5},
            {"model": "classes", "inputs": [["the man"], ["a", "b"]]},
        ),
        ("normalize", "truncate", "raw_scores", "query", "texts"),
    ),
    "similarity": Route(
        "/similarity",
        is_typed,
        (
            {
                "model": "vectors",
                "inputs": {"source_sentence": "the man", "sentences": ["paris", "a"]},
                "parameters": {"truncate": True},
            },
        ),
        ("parameters", "timeout"),
    ),
    "predict": Route(
        "/predict",
        is_typed,
        (
            {"model": "classes", "inputs": [["the man"], ["a", "b"]], "raw_scores": False},
            {"model": "classes", "inputs": "the man", "truncate": True},
        ),
    ),
    "tag": Route(
        "/v1/tag",
        is_native,
        ({"model": "tags", "texts": ["the man eats", [2, 9, 3]]},),
        ("truncate", "timeout"),
    ),
    "fill": Route(
        "/v1/fill",
        is_native,
        ({"model": "masks", "texts": ["the [MASK] eats", [2, 4, 3]], "top": 3},),
        ("truncate", "timeout"),
    ),
    "answer": Route(
        "/v1/answer",
        is_native,
        (
            {
                "model": "answers",
                "texts": [["the man", "paris is in france ."]],
                "longest": 3,
                "stride": 2,
            },
        ),
        ("truncate", "timeout"),
    ),
    "attention": Route(
        "/v1/attention",
        is_native,
        (
            LETTERS | {"target": [11, 30], "end_token": False},
            LETTERS | {"target": "D R", "timeout": 30},
            {"model": "classes", "source": ["the man", "eats"]},
            {"model": "speech", "audio": CLIP},
        ),
        ("language", "source_language", "target_language", "task", "timestamps", "target"),
    ),
    "infer": Route(
        "/v2/models/letters-en-xx/infer",
        is_plain,
        (
            {"inputs": [TEXT]},
            {"id": "7", "inputs": [TEXT], "outputs": OUTPUTS, "parameters": {"num_beams": 2}},
            {"inputs": [TEXT], "parameters": {"timeout": 10**7, "binary_data_output": True}},
            {"inputs": [NUMBERS]},
        ),
        ("outputs", "parameters"),
    ),
    "infer answers": Route(
        "/v2/models/answers/versions/1/infer",
        is_plain,
        ({"inputs": [PAIRS]}, {"inputs": [PAIRS], "parameters": {"truncate": True}}),
        ("outputs", "parameters"),
    ),
    "completions": Route(
        "/v1/completions",
        is_openai,
        (
            PROMPT | {"logprobs": 2},
            {"model": "verses", "prompt": ["a", [5, 6]], "n": 2, "top_p": 0.9, "seed": 1},
            PROMPT | {"echo": True, "user": "a"},
            PROMPT | {"stream": True, "stream_options": {"include_usage": True}, "stop": ["e"]},
        ),
        (
            *("temperature", "best_of", "suffix", "logit_bias", "user", "logprobs"),
            *("frequency_penalty", "presence_penalty", "stop", "n", "seed"),
        ),
    ),
    "embeddings": Route(
        "/v1/embeddings",
        is_openai,
        (
            {"model": "vectors", "input": ["the man", "paris"], "encoding_format": "base64"},
            {"model": "vectors", "input": [2, 9, 3], "dimensions": 24, "user": "a"},
        ),
        ("prompt_name",),
    ),
    "translate": Route(
        "/translate",
        is_plain,
        (
            {"q": "dragoman", "source": "en", "target": "xx", "alternatives": 2},
            {"q": ["a", "it"], "source": "auto", "target": "xx", "model": "letters-en-xx"},
            {"q": "<p>a <b>it</b></p>", "source": "en", "target": "xx", "format": "html"},
        ),
        ("format", "api_key", "model", "alternatives"),
    ),
    "detect": Route("/detect", is_plain, ({"q": "dragoman"}, {"q": ""}), ("api_key", "source")),
}


SPOKEN: tuple[Part, ...] = (
    ("model", None, b"speech"),
    ("file", "a.wav", WAV),
    ("response_format", None, b"verbose_json"),
    ("language", None, b"de"),
    ("temperature", None, b"0"),
    ("timestamp_granularities[]", None, b"segment"),
)
TRANSLATED: tuple[Part, ...] = (
    ("q", None, b"dragoman"),
    ("source", None, b"en"),
    ("target", None, b"xx"),
    ("alternatives", None, b"1"),
)
FORMS: dict[str, tuple[IsError, tuple[Part, ...], tuple[str, ...]]] = {
    "/v1/audio/transcriptions": (is_openai, SPOKEN, ("prompt", "stream", "more")),
    "/v1/audio/translations": (is_openai, SPOKEN[:3], ("language", "temperature", "prompt")),
    "/translate": (is_plain, TRANSLATED, ("model", "format", "api_key", "more")),
}


def binary(name: str, *values: bytes) -> tuple[Body, bytes]:
    content = b"".join(struct.pack("<I", len(value)) + value for value in values)
    size = {"binary_data_size": len(content)}
    tensor = {"name": name, "datatype": "BYTES", "shape": [len(values)], "parameters": size}
    return {"inputs": [tensor]}, content
