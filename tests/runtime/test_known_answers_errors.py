"""The error of known answers names what is other than at build, and what to do."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from dragoman.runtime.answer_comparison import Outcome
from dragoman.runtime.backends.cuda import Gpu
from dragoman.runtime.backends.machine import Machine
from dragoman.runtime.format.bundle import read_bundle
from dragoman.runtime.format.known_answers import GeneratedAnswer, KnownAnswers
from dragoman.runtime.loading import describe_difference

from .format.test_stored_bundle import DIRECTORY

VERSIONS = {"dragoman": "1", "numpy": "2", "tokenizers": "3", "onnxruntime": "4"}
BUILT = Machine("Linux", "Some CPU", ("avx2",), False, None, VERSIONS)
GPU = Gpu("Some GPU", "8.9", "13.0")
DRIVER = {"NVIDIA driver": "580.1"}
ANSWER = GeneratedAnswer(
    name="input 1",
    at_load=True,
    source=(3,),
    num_beams=1,
    max_new_tokens=1,
    tokens=(4,),
    log_probabilities=(-1.0,),
)
DAMAGED = "with the same versions on the same kind of machine"


@pytest.mark.parametrize(
    ("changes", "versions", "by_tokenizer", "expected"),
    [
        ({}, {}, False, DAMAGED),
        ({}, {"onnxruntime": "5"}, False, "onnxruntime 5 gives .* install onnxruntime==4, which"),
        ({}, {"dragoman": "6"}, False, "dragoman 6 gives .* install dragoman==1, which"),
        ({"processor": "X"}, {"dragoman": "6"}, False, "X gives .* at build on Some CPU "),
        ({"features": ()}, {}, False, "Some CPU gives .*, which differ in avx2 "),
        ({"processor": "X"}, {"tokenizers": "7"}, True, "tokenizers 7 gives .* tokenizers==3,"),
        ({"processor": "X"}, {}, True, DAMAGED),
        ({"gpu": GPU}, {"onnxruntime": "5"}, False, "onnxruntime 5 .* onnxruntime-gpu==4, which"),
        (
            {"gpu": GPU},
            DRIVER,
            False,
            r"Some GPU \(onnxruntime 4, NVIDIA driver 580\.1\) gives .* another driver",
        ),
    ],
)
def test_what_differs_is_named(
    changes: dict[str, Any], versions: dict[str, str], by_tokenizer: bool, expected: str
) -> None:
    known = KnownAnswers(
        versions=VERSIONS, processor=BUILT.processor, features=BUILT.features, answers=()
    )
    outcomes = [Outcome(ANSWER, problem="token 0: 5, expected 4", by_tokenizer=by_tokenizer)]
    machine = dataclasses.replace(BUILT, versions=VERSIONS | versions, **changes)
    text = describe_difference(read_bundle(DIRECTORY / "bundle").manifest, known, outcomes, machine)
    assert re.search(expected, text)
    assert text.endswith("; input 1: token 0: 5, expected 4")


def test_tokens_come_before_probabilities_and_each_is_named() -> None:
    known = KnownAnswers(
        versions=VERSIONS, processor=BUILT.processor, features=BUILT.features, answers=()
    )
    one, other = (dataclasses.replace(ANSWER, name=f"input {number}") for number in (1, 2))
    margin = "token 0: margin 1.0000, expected 2.0000"
    outcomes = [Outcome(one, 1.0, margin, same_tokens=True)]
    manifest = read_bundle(DIRECTORY / "bundle").manifest
    text = describe_difference(manifest, known, outcomes, BUILT)
    assert "gives other probabilities than those proven at build" in text
    assert text.endswith(f"; input 1: {margin}")
    outcomes.append(Outcome(other, problem="token 0: 5, expected 4"))
    text = describe_difference(manifest, known, outcomes, BUILT)
    assert "gives other tokens than those proven at build" in text
    assert text.endswith("; input 2: token 0: 5, expected 4")
