"""The known answers of a bundle: inputs, and the outputs that were right where it was built.

They are in `known_answers.json`, with a hash in the manifest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from dragoman.files.strict_json import parse_json
from dragoman.settings.fields import LEFT_OUT

from .manifest import FileRecord, Manifest, TensorRTEngines
from .plain_data import Problems, from_plain, to_plain

KNOWN_ANSWERS_FILE = "known_answers.json"
LARGEST_FILE = 64 << 10
FORMAT_VERSION = 1
PROJECTIONS = 8
"""The number of values that are kept of an encoder-only model's output."""
LONGEST_SOUND = 30.0

Check = Literal["once", "always", "never"]
"""When known answers are checked, see `load`."""
CHECKS: tuple[Check, ...] = ("once", "always", "never")


@dataclass(frozen=True, kw_only=True)
class GeneratedAnswer:
    """The output for one input of a model with a decoder."""

    kind: Literal["generate"] = "generate"
    name: str
    """What the input is, such as "held_out.tsv, line 17"."""
    at_load: bool
    """Whether `load` checks it; `verify` checks all."""
    source: tuple[int, ...]
    """Source token ids; empty for speech."""
    text: Annotated[str | None, LEFT_OUT] = None
    """The text that the bundle's tokenizer turns into `source`, if it is known."""
    seconds: Annotated[float | None, LEFT_OUT] = None
    """Speech: seconds of generated sound, see `audio.log_mel.sound`."""
    prefix: Annotated[tuple[int, ...], LEFT_OUT] = ()
    """Forced beginning of the output."""
    num_beams: int
    """Number of beams; 1: greedy search without penalties."""
    max_new_tokens: int
    """Maximum new tokens, including the prefix."""
    oracle: Annotated[tuple[int, ...] | None, LEFT_OUT] = None
    """The trained model's output; None: the same as `tokens`, or not known (beams)."""
    tokens: tuple[int, ...]
    """The bundle's output after the prefix, including the end token."""
    output: Annotated[str | None, LEFT_OUT] = None
    """Text of the output; None without tokenizers."""
    log_probabilities: tuple[float, ...]
    """The bundle's log-probability of each token, in nats."""
    margins: Annotated[tuple[float, ...], LEFT_OUT] = ()
    """Greedy: the log-probability of each token minus that of the best other one."""
    likely: Annotated[tuple[tuple[int, ...], ...], LEFT_OUT] = ()
    """Greedy, unless the bundle runs on a processor only: for each token of the trained model's
    output, or of `tokens` if that is not known, this token and the most probable others; empty
    for a forced token."""
    oracle_log_probabilities: Annotated[tuple[tuple[float, ...], ...], LEFT_OUT] = ()
    """The trained model's log-probability of each of `likely`, among unsuppressed tokens."""

    @property
    def score(self) -> float:
        """The sum of the log-probabilities."""
        return sum(self.log_probabilities)


@dataclass(frozen=True, kw_only=True)
class EncodedAnswer:
    """The output of an encoder-only model for one input."""

    kind: Literal["encode"] = "encode"
    name: str
    at_load: bool
    """`name` and `at_load`: see `GeneratedAnswer`."""
    source: tuple[int, ...]
    """Source token ids."""
    types: Annotated[tuple[int, ...], LEFT_OUT] = ()
    """Token type ids; empty: all 0."""
    texts: Annotated[tuple[str, ...], LEFT_OUT] = ()
    """The text or pair of texts that the tokenizer turns into `source`, if it is known."""
    values: tuple[float, ...]
    """`PROJECTIONS` sums of all numbers of the output with different signs, divided by the root of
    their sum of squares."""
    size: float
    """The root of the mean square of the numbers."""
    oracle_values: Annotated[tuple[float, ...], LEFT_OUT] = ()
    oracle_size: Annotated[float, LEFT_OUT] = 0.0
    """`oracle_values` and `oracle_size`: the same of the trained model's output; empty and 0 if the
    bundle runs on a processor only."""


Answer = GeneratedAnswer | EncodedAnswer


@dataclass(frozen=True, kw_only=True)
class KnownAnswers:
    """All known answers of a bundle, and where they were computed."""

    format_version: int = FORMAT_VERSION
    versions: dict[str, str]
    """Versions of the libraries, see `backends.machine`."""
    processor: str
    features: tuple[str, ...]
    source_language: str | None = None
    """Language of the texts; None: the model has no languages."""
    target_language: str | None = None
    """Language of the outputs; None likewise."""
    allowed: Annotated[float | None, LEFT_OUT] = None
    """Below fp32, the largest allowed mean divergence from the trained model's distributions, in
    nats; for an encoder-only model, the largest allowed difference from its output, as a share
    of the output's size."""
    answers: tuple[Answer, ...] = field(default=())

    @property
    def at_load(self) -> tuple[Answer, ...]:
        """The answers that `load` checks."""
        return tuple(answer for answer in self.answers if answer.at_load)

    def to_json(self) -> bytes:
        """Return the contents of the file, an answer a line."""
        data = to_plain(self, brief=True)
        lines = [json.dumps(answer, ensure_ascii=False) for answer in data.pop("answers")]
        head = json.dumps(data, ensure_ascii=False).removesuffix("}")
        return (head + ', "answers": [\n' + ",\n".join(lines) + "\n]}\n").encode()


def record_of(manifest: Manifest) -> FileRecord | None:
    """Return the record of the file in a manifest; None: the bundle has no known answers."""
    return next((file for file in manifest.files if file.path == KNOWN_ANSWERS_FILE), None)


def parse_known_answers(
    data: bytes, manifest: Manifest, problems: list[str]
) -> KnownAnswers | None:
    """Read and check the contents of the file; add what is wrong to `problems`."""
    if len(data) > LARGEST_FILE:
        problems.append(f"expected at most {LARGEST_FILE} bytes, found {len(data)}")
        return None
    try:
        plain = parse_json(data.decode())
    except ValueError as error:
        problems.append(f"expected JSON: {error}")
        return None
    version = plain.get("format_version") if isinstance(plain, dict) else None
    if isinstance(version, int) and version > FORMAT_VERSION:
        problems.append(
            f"format_version: found {version}, newer than {FORMAT_VERSION}, the newest that this "
            "Dragoman reads: upgrade with pip install --upgrade dragoman"
        )
        return None
    found = Problems()
    known = from_plain(KnownAnswers, plain, "known answers", found)
    if known is not None:
        found += _inconsistencies(known, manifest)
    problems += found
    return None if found else known


def digest(manifest: Manifest) -> str:
    """Return a hash of a manifest, which names the hashes of all files; its parity is left out."""
    executable = manifest.executable
    if isinstance(executable, TensorRTEngines):
        executable = dataclasses.replace(executable, parity=None)
    text = dataclasses.replace(manifest, parity=None, executable=executable).to_json()
    return hashlib.sha256(text.encode()).hexdigest()


def _inconsistencies(known: KnownAnswers, manifest: Manifest) -> Iterator[str]:
    if known.format_version != FORMAT_VERSION:
        yield f"format_version: expected {FORMAT_VERSION}, found {known.format_version}"
    if not known.at_load:
        yield "answers: expected at least one with at_load, found none"
    names = [answer.name for answer in known.answers]
    if len({*names}) < len(names):
        yield "answers: expected different names"
    languages = manifest.languages
    for name, code in (
        ("source_language", known.source_language),
        ("target_language", known.target_language),
    ):
        if code is not None and (languages is None or code not in languages.tokens):
            yield f"{name}: expected a language of the model, found {code}"
    kind = "encode" if manifest.head is not None else "generate"
    for number, answer in enumerate(known.answers):
        path = f"answers[{number}]"
        if answer.kind != kind:
            yield f"{path}.kind: expected {kind} for kind {manifest.kind}, found {answer.kind}"
            continue
        made = (
            _generated(answer, manifest)
            if isinstance(answer, GeneratedAnswer)
            else _encoded(answer, manifest)
        )
        for problem in made:
            yield f"{path}.{problem}"


def _generated(answer: GeneratedAnswer, manifest: Manifest) -> Iterator[str]:
    model = manifest.model
    known = model.target_vocab_size
    if model.takes_audio:
        if answer.source:
            yield "source: expected none for a speech model"
        if answer.seconds is None or not 0 < answer.seconds <= LONGEST_SOUND:
            yield f"seconds: expected more than 0 and at most {LONGEST_SOUND:g}"
    else:
        if answer.seconds is not None:
            yield "seconds: expected none for a model that reads tokens"
        yield from _ids("source", answer.source, model.input_vocab_size, model.input_positions)
        if not answer.source:
            yield "source: expected at least one token, found none"
    yield from _ids("prefix", answer.prefix, known, model.max_target_positions)
    yield from _ids("tokens", answer.tokens, known, model.max_target_positions)
    yield from _ids("oracle", answer.oracle or (), known, model.max_target_positions)
    if not 1 <= answer.max_new_tokens <= model.max_target_positions:
        yield (
            f"max_new_tokens: expected 1 to {model.max_target_positions}, found "
            f"{answer.max_new_tokens}"
        )
    if not 1 <= answer.num_beams <= known:
        yield f"num_beams: expected 1 to {known}, found {answer.num_beams}"
    for name, values in (
        ("log_probabilities", answer.log_probabilities),
        ("margins", answer.margins),
    ):
        if len(values) != len(answer.tokens) and (values or name != "margins"):
            yield f"{name}: expected one for each of {len(answer.tokens)} tokens"
    if any(value > 0 for value in answer.log_probabilities):
        yield "log_probabilities: expected at most 0"
    along = answer.tokens if answer.oracle is None else answer.oracle
    if answer.likely and len(answer.likely) != len(along):
        yield f"likely: expected one for each of {len(along)} tokens, found {len(answer.likely)}"
    for step, tokens in enumerate(answer.likely):
        yield from _ids(f"likely[{step}]", tokens, known, known)
    if [*map(len, answer.oracle_log_probabilities)] != [*map(len, answer.likely)]:
        yield "oracle_log_probabilities: expected one for each token of likely"
    stored = (value for step in answer.oracle_log_probabilities for value in step)
    if any(not -math.inf < value <= 0 for value in stored):
        yield "oracle_log_probabilities: expected at most 0"


def _encoded(answer: EncodedAnswer, manifest: Manifest) -> Iterator[str]:
    model = manifest.model
    yield from _ids("source", answer.source, model.source_vocab_size or 0, model.input_positions)
    if not answer.source:
        yield "source: expected at least one token, found none"
    types = manifest.head.token_types if manifest.head else 0
    if answer.types and len(answer.types) != len(answer.source):
        yield f"types: expected one for each of {len(answer.source)} tokens"
    yield from _ids("types", answer.types, max(types, 1), model.input_positions)
    if len(answer.texts) > 2:
        yield f"texts: expected a text or a pair, found {len(answer.texts)}"
    for name, values in (("values", answer.values), ("oracle_values", answer.oracle_values)):
        if len(values) != PROJECTIONS and (values or name == "values"):
            yield f"{name}: expected {PROJECTIONS}, found {len(values)}"
    if answer.size < 0:
        yield f"size: expected at least 0, found {answer.size}"


def _ids(name: str, ids: tuple[int, ...], known: int, longest: int) -> Iterator[str]:
    unknown = next((token for token in ids if not 0 <= token < known), None)
    if unknown is not None:
        yield f"{name}: expected ids in [0, {known}), found {unknown}"
    if len(ids) > longest:
        yield f"{name}: expected at most {longest}, found {len(ids)}"
