"""Beam search gives the hypotheses and scores of Hugging Face's `generate`, for every family."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.export import export_bundle
from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.exporter import default_max_new_tokens, generation_settings
from dragoman.export.families.hugging_face import load_hugging_face
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import (
    AutoregressiveModel,
    EncoderModel,
    GenerationConfig,
    Hypothesis,
    beam_search_uncached,
)
from dragoman.runtime import Model, load, read_bundle
from dragoman.runtime.decoding.beam_search import Beam
from dragoman.runtime.decoding.request import Request, Rules
from dragoman.runtime.decoding.running_batch import DecodedJob, Job
from dragoman.runtime.decoding.scheduler import Scheduler

from ... import speech_models
from .beam_cases import (
    CASES,
    OTHER_CASES,
    SOURCES,
    Case,
    Comparison,
    Subject,
    their_hypotheses,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore:Unfeasible length constraints:UserWarning",
    "ignore:Using the model-agnostic default:UserWarning",
)


MakeModel = Callable[[str, tuple[int, ...]], Model]


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    """The results of all cases."""
    return Comparison()


@pytest.fixture(scope="module")
def comparison_in_float32() -> Comparison:
    """The results of all cases."""
    return Comparison()


@pytest.fixture(scope="module")
def comparison_of_runtime() -> Comparison:
    """The results of all cases."""
    return Comparison()


@pytest.fixture(scope="module")
def beam_model(
    beam_subject: Callable[[str], Subject], tmp_path_factory: pytest.TempPathFactory
) -> MakeModel:
    """A subject as a bundle for processors, whose graphs suppress some tokens."""

    @cache
    def make(name: str, suppressed: tuple[int, ...]) -> Model:
        neutral, bundle = (tmp_path_factory.mktemp(f"{name}-bundle") for _ in range(2))
        ours = beam_subject(name).ours
        present = ours.generation
        ours.generation = dataclasses.replace(present, suppressed_token_ids=suppressed)
        try:
            export_bundle(ours, neutral, name=name)
        finally:
            ours.generation = present
        return load(optimize_bundle(read_bundle(neutral), bundle, target="cpu").directory)

    return make


@pytest.mark.parametrize(
    "case",
    [*CASES, *(pytest.param(case, marks=pytest.mark.combinations) for case in OTHER_CASES)],
    ids=str,
)
def test_hypotheses_are_theirs(
    case: Case,
    beam_subject: Callable[[str], Subject],
    beam_model: MakeModel,
    comparison: Comparison,
    comparison_in_float32: Comparison,
    comparison_of_runtime: Comparison,
) -> None:
    """Those of the reference model without a cache, and those of the runtime, sources together.

    Theirs are computed in float64, so that no processor's rounding is the oracle. The reference
    model does the same in float64, token by token, and gives the same outputs in float32.
    """
    subject = beam_subject(case.subject)
    exact = subject.in_float64()
    generation = subject.generation(case)
    theirs = their_hypotheses(exact, case)
    # A negative penalty multiplies sums of log-probabilities, and their rounding.
    penalty = generation.length_penalty

    def found_by(reference: Subject) -> list[list[Hypothesis]]:
        found = beam_search_uncached(
            reference.ours, reference.sources, case.limit, generation=generation
        )
        return [hypotheses[: case.returned] for hypotheses in found]

    comparison.hold(found_by(exact), theirs, case.limit, within=1e-5, length_penalty=penalty)
    in_float32 = found_by(subject)
    comparison_in_float32.hold(in_float32, theirs, case.limit, steps=False, length_penalty=penalty)
    model = beam_model(case.subject, generation.suppressed_token_ids)
    decoded = decoded_by(model, subject, case, generation)
    comparison_of_runtime.hold(decoded, theirs, case.limit, steps=False, length_penalty=penalty)


def decoded_by(
    model: Model, subject: Subject, case: Case, generation: GenerationConfig
) -> list[list[Hypothesis]]:
    """The hypotheses of the decoding loop."""
    spec, settings = model.manifest.model, generation_settings(generation)
    strategy = Beam(
        settings.num_beams, settings.length_penalty, settings.early_stopping, case.returned
    )
    scheduler: Scheduler[int] = Scheduler(model.backend, spec, rows=10**6, tokens=10**6)
    for index, source in enumerate(subject.sources):
        encodable = source.numpy() if isinstance(source, torch.Tensor) else list(source)
        prompt = [spec.start_token_id, *settings.prompt]
        if not spec.has_encoder:
            assert isinstance(encodable, list)
            prompt, encodable = [*encodable, *settings.prompt], []
        rules = Rules.of(
            settings,
            limit=case.limit,
            end_tokens=settings.end_tokens(spec.end_token_id),
            prompt_length=len(prompt),
        )
        request = Request(source=encodable, prompt=prompt, rules=rules)
        scheduler.add(Job(index, request, strategy))
    found: dict[int, list[Hypothesis]] = {}
    for outcome in scheduler.run():
        assert isinstance(outcome, DecodedJob)
        found[outcome.job.key] = [
            Hypothesis(
                tuple(sequence.row.tokens[sequence.begin :]),
                sequence.score,
                (*sequence.log_probabilities,),
            )
            for sequence in outcome.sequences
        ]
    return [found[index] for index in range(len(subject.sources))]


def test_how_many_were_compared(
    comparison: Comparison,
    comparison_in_float32: Comparison,
    comparison_of_runtime: Comparison,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Enough end before their limit, and enough there; ties are rare."""
    if comparison.compared < 1500:
        pytest.skip("this counts what all cases above have compared")
    with capsys.disabled():
        print(f"\nfloat64: {comparison}\nfloat32: {comparison_in_float32}")
        print(f"runtime: {comparison_of_runtime}")
    for counted in (comparison, comparison_in_float32, comparison_of_runtime):
        assert 0.3 < counted.ended / counted.compared < 0.7
        assert counted.ties <= 0.01 * counted.compared


@pytest.mark.parametrize("name", ["marian", "t5", "whisper"])
def test_searches_differ(name: str, beam_subject: Callable[[str], Subject]) -> None:
    """The cases would mean little otherwise."""
    subject = beam_subject(name)

    def outputs(**settings: Any) -> list[list[tuple[int, ...]]]:
        case = Case("", name, {"num_beams": 4, "length_penalty": 1.0} | settings)
        found = beam_search_uncached(
            subject.ours, subject.sources, case.limit, generation=subject.generation(case)
        )
        return [[hypothesis.tokens for hypothesis in hypotheses] for hypotheses in found]

    usual = outputs()
    others: list[dict[str, Any]] = [
        *({"num_beams": 2}, {"num_beams": 5}, {"length_penalty": 0.6}, {"length_penalty": 2.0}),
        *({"early_stopping": True}, {"early_stopping": "never"}),
    ]
    assert all(outputs(**settings) != usual for settings in others)


def with_settings(directory: Path, **settings: Any) -> Path:
    """Replace generation settings of a checkpoint; None takes them away."""
    path = directory / "generation_config.json"
    stated = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({n: v for n, v in stated.items() if v is not None}))
    return directory


def best_outputs(model: AutoregressiveModel, sources: list[Any]) -> list[list[int]]:
    """Without options."""
    found = beam_search_uncached(model, sources, default_max_new_tokens(model))
    return [list(hypotheses[0].tokens) for hypotheses in found]


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *(("bart", {"max_length": 11}), ("bart", {"max_new_tokens": 12}), ("bart", {})),
        *(("t5", {"max_length": 11}), ("t5", {"max_new_tokens": 12}), ("t5", {})),
        *(("gpt2", {"max_new_tokens": 12}), ("gpt2", {})),
    ],
    ids=str,
)
def test_without_options_it_is_generate_without_options(
    name: str, limit: dict[str, int], beam_subject: Callable[[str], Subject], tmp_path: Path
) -> None:
    """From the files of a checkpoint."""
    subject = beam_subject(name)
    subject.theirs.save_pretrained(tmp_path)
    beams = {"num_beams": 3, "length_penalty": 1.5, "early_stopping": "never"}
    unstated = {"max_length": None, "max_new_tokens": None}
    ends = subject.settings["eos_token_id"][: 1 if name == "gpt2" else 3]
    settings = {**subject.settings, "eos_token_id": ends, **beams, **unstated, **limit}
    with_settings(tmp_path, **settings)
    theirs = type(subject.theirs).from_pretrained(tmp_path)
    model = read_checkpoint(tmp_path).model
    assert not isinstance(model, EncoderModel)
    found = best_outputs(model, SOURCES)
    for source, output in zip(SOURCES, found, strict=True):
        prompt = len(source) if name == "gpt2" else 1
        (expected,) = theirs.generate(torch.tensor([source]))[:, prompt:].tolist()
        assert output == expected
    assert any(output[-1] not in ends for output in found)


def test_a_length_with_the_prompt_is_noted(
    beam_subject: Callable[[str], Subject], tmp_path: Path
) -> None:
    """How many new tokens it allows depends on the prompt there, and does not here."""
    subject = beam_subject("gpt2")
    subject.theirs.save_pretrained(tmp_path)
    with_settings(tmp_path, eos_token_id=[0], max_length=11, max_new_tokens=None)
    (note,) = read_checkpoint(tmp_path).notes
    assert note.startswith("max_length counts the tokens of the prompt in Hugging Face's generate")
    assert note.endswith("end after 10 new tokens")
    with_settings(tmp_path, max_new_tokens=11)
    assert read_checkpoint(tmp_path).notes == ()


@pytest.mark.parametrize("limit", [24, None])
def test_a_window_of_whisper_without_options(limit: int | None, tmp_path: Path) -> None:
    """By its own `generate`."""
    theirs = speech_models.MODELS["english"]()
    speech_models.save(theirs, tmp_path)
    with_settings(tmp_path, num_beams=4, length_penalty=0.7, max_length=limit)
    theirs = type(theirs).from_pretrained(tmp_path)
    config = theirs.config
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(
        4, config.num_mel_bins, 2 * config.max_source_positions, generator=generator
    )
    found = best_outputs(load_hugging_face(tmp_path), list(features))
    generated = theirs.generate(features).tolist()
    end = config.eos_token_id
    # It gives neither the prompt nor the end.
    trimmed = [[token for token in row if token != end] for row in generated]
    assert [[token for token in row if token != end] for row in found] == trimmed
    assert max(map(len, found)) == (limit or 20)
