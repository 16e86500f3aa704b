"""Beam search of every family at Hugging Face: random models, and cases that cover its settings.

Whatever decodes with beams is held to them: `CASES`, `make_subject`, `their_hypotheses` and
`Comparison`.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families import FAMILIES
from dragoman.reference_model import (
    AutoregressiveModel,
    EncoderModel,
    GenerationConfig,
    Hypothesis,
    LanguageModel,
    Source,
    Transformer,
    as_batch,
)

from ... import speech_models
from .beam_models import MODELS

transformers: Any = importlib.import_module("transformers")

LIMIT = 14
SOURCES = [[7, 3, 9, 2], [5], [11, 12, 12, 30, 8, 2, 19], [11, 20, 23, 4, 17, 6, 9, 9, 2], [4, 4]]


@dataclass(frozen=True)
class Case:
    """A search.

    Attributes:
        settings: as in `generation_config.json`, besides those of the subject
        limit: the most new tokens
        returned: how many hypotheses
        together: whether Hugging Face decodes all sources in one batch
    """

    name: str
    subject: str
    settings: dict[str, Any]
    limit: int = LIMIT
    returned: int = 1
    together: bool = True

    def __str__(self) -> str:
        return f"{self.subject}: {self.name}"


@dataclass(frozen=True)
class Subject:
    """A model at Hugging Face and the same read from its checkpoint.

    Attributes:
        settings: those of tokens, which every case has. There are three end tokens, which random
            outputs reach about as often as not
    """

    theirs: Any
    ours: AutoregressiveModel
    directory: Path
    sources: list[Source]
    settings: dict[str, Any]

    def generation(self, case: Case) -> GenerationConfig:
        """The settings of a case, as `dragoman.export` reads them."""
        read = FAMILIES[self.theirs.config.model_type].generation
        settings = {**self.settings, **case.settings, "max_new_tokens": case.limit}
        return read(self.directory, settings, self.ours.config, [])

    def in_float64(self) -> Subject:
        """The same with copies of both models that compute in float64.

        Random weights amplify rounding: layers of attention with large scores, several keys of
        which share the weight, turn 1e-6 into 1e-4, of a sign that depends on the order in which
        the processor's kernels sum.
        """
        return dataclasses.replace(
            self,
            theirs=copy.deepcopy(self.theirs).double(),
            ours=copy.deepcopy(self.ours).double(),
            sources=[s.double() if isinstance(s, torch.Tensor) else s for s in self.sources],
        )


def make_subject(name: str, directory: Path) -> Subject:
    """A model, saved in a directory."""
    build, settings = MODELS[name]
    theirs = build()
    if name == "whisper":
        speech_models.save(theirs, directory)
        stated = theirs.generation_config.to_dict()
        settings = {n: v for n, v in stated.items() if v is not None and n != "max_length"}
    else:
        settings = settings | {
            field: getattr(theirs.config, field)
            for field in ("pad_token_id", "eos_token_id", "decoder_start_token_id")
            if hasattr(theirs.config, field)
        }
        theirs.generation_config = transformers.GenerationConfig(**settings)
        theirs.save_pretrained(directory)
    ours = read_checkpoint(directory).model
    assert not isinstance(ours, EncoderModel)
    sources: list[Source] = list(SOURCES)
    if ours.config.feature_size is not None:
        shape = (5, ours.config.feature_size, ours.config.feature_frames)
        sources = list(torch.randn(shape, generator=torch.Generator().manual_seed(2)))
    subject = Subject(theirs, ours, directory, sources, settings)
    ends = end_tokens(subject.in_float64())
    return dataclasses.replace(subject, settings=settings | {"eos_token_id": ends})


def end_tokens(subject: Subject) -> list[int]:
    """Three tokens that about half of the outputs that nothing ends have."""
    endless = Case("endless", "", {"num_beams": 4, "eos_token_id": []}, returned=4)
    outputs = [
        set(hypothesis.tokens) - {subject.settings.get("forced_bos_token_id")}
        for of_source in their_hypotheses(subject, endless)
        for hypothesis in of_source
    ]
    count = Counter(token for tokens in outputs for token in tokens)
    special = {subject.settings["pad_token_id"], subject.settings.get("decoder_start_token_id")}
    by_share = sorted(count, key=lambda token: (abs(count[token] / len(outputs) - 0.5), token))
    return [token for token in by_share if token not in special][:3]


def their_hypotheses(subject: Subject, case: Case) -> list[list[Hypothesis]]:
    """What `generate` returns. The copies that fill up where there are too few hypotheses are left
    out."""
    stated = {**subject.settings, **case.settings}
    if stated["eos_token_id"] == []:
        stated["eos_token_id"] = None
    theirs = subject.theirs
    theirs.generation_config = transformers.GenerationConfig(**stated)
    batches = [subject.sources] if case.together else [[source] for source in subject.sources]
    return [found for batch in batches for found in _of_batch(subject, batch, case)]


def _of_batch(subject: Subject, sources: Sequence[Source], case: Case) -> list[list[Hypothesis]]:
    theirs, ours = subject.theirs, subject.ours
    inputs = prompts_of(sources) if isinstance(ours, LanguageModel) else inputs_of(sources, ours)
    begins = inputs["input_ids" if isinstance(ours, LanguageModel) else "decoder_input_ids"]
    prompt_length = begins.shape[1]
    # Whisper's own `generate` returns the best hypothesis as often as others are asked for.
    output = transformers.GenerationMixin.generate(
        theirs,
        **inputs,
        max_new_tokens=case.limit,
        num_return_sequences=case.returned,
        return_dict_in_generate=True,
        output_scores=True,
    )
    steps = theirs.compute_transition_scores(
        output.sequences, output.scores, output.beam_indices, normalize_logits=False
    )
    hypotheses: list[list[Hypothesis]] = [[] for _ in sources]
    for row, score in enumerate(output.sequences_scores.tolist()):
        length = int((output.beam_indices[row] >= 0).sum())
        if length and score > -1e8:
            tokens = output.sequences[row, prompt_length : prompt_length + length].tolist()
            found = Hypothesis(tuple(tokens), score, tuple(steps[row, :length].tolist()))
            hypotheses[row // case.returned].append(found)
    return hypotheses


def inputs_of(sources: Sequence[Source], ours: Transformer) -> dict[str, Any]:
    """Sources, and what the decoder begins with."""
    source, mask = as_batch(sources, ours.config)
    prompt = [ours.config.start_token_id, *ours.generation.prompt]
    known = {"decoder_input_ids": torch.tensor([prompt] * len(sources))}
    if ours.config.feature_size is not None:
        return known | {"input_features": source}
    return known | {"input_ids": source, "attention_mask": mask.long()}


def prompts_of(sources: Sequence[Source]) -> dict[str, Any]:
    """Prompts of a decoder-only model, with padding before them."""
    lengths = [len(source) for source in sources]
    padded = [[0] * (max(lengths) - len(source)) + list(source) for source in sources]
    mask = [[0] * (max(lengths) - length) + [1] * length for length in lengths]
    return {"input_ids": torch.tensor(padded), "attention_mask": torch.tensor(mask)}


@dataclass
class Comparison:
    """Hypotheses held to Hugging Face's, over all cases.

    Attributes:
        compared: how many
        ties: of these, how many have other tokens, with the same score
        ended: how many end before their limit
    """

    compared: int = 0
    ties: int = 0
    ended: int = 0

    def hold(
        self,
        found: Sequence[Sequence[Hypothesis]],
        expected: Sequence[Sequence[Hypothesis]],
        limit: int,
        *,
        steps: bool = True,
        within: float = 1e-4,
        length_penalty: float = 1.0,
    ) -> None:
        """Assert that for each source all hypotheses are the same, in the same order, but for
        ties, and that scores are equal.

        Args:
            steps: whether to hold the log-probabilities of tokens too, which are then those after
                the rules, as theirs
            within: what scores and log-probabilities may differ by
            length_penalty: a negative one multiplies the sum of log-probabilities, and with it
                what it is exact to
        """

        def scale(length: int) -> float:
            return float(max(1.0, length**-length_penalty))

        assert len(found) == len(expected)
        for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
            where = f"source {index}: found {ours}, expected {theirs}"
            assert len(ours) == len(theirs), where
            for mine, other in zip(ours, theirs, strict=True):
                self.compared += 1
                self.ended += len(other.tokens) < limit
                assert abs(mine.score - other.score) < within * scale(len(other.tokens)), where
                if mine.tokens != other.tokens:
                    assert abs(mine.score - other.score) < 1e-5, where
                    self.ties += 1
                if mine.tokens != other.tokens or not steps:
                    continue
                assert len(mine.token_log_probabilities) == len(mine.tokens), where
                for a, b in zip(
                    mine.token_log_probabilities, other.token_log_probabilities, strict=True
                ):
                    assert abs(a - b) < within, where


def _combinations(subject: str, row: int) -> tuple[list[Case], list[Case]]:
    """Nine of 27 combinations, in which each pair of values of two settings occurs; the others."""
    covering: list[Case] = []
    others: list[Case] = []
    for i, j, k in itertools.product(range(3), repeat=3):
        beams, length_penalty = (2, 4, 5)[i], (0.6, 1.0, 2.0)[j]
        early_stopping = (False, True, "never")[k]
        settings = {
            "num_beams": beams,
            "length_penalty": length_penalty,
            "early_stopping": early_stopping,
        }
        limit = (LIMIT, 6, 20)[(j + 2 * k + row) % 3]
        returned = (1, 2, beams)[(i + k) % 3]
        name = f"{beams} beams, length penalty {length_penalty}, {early_stopping}, {limit} tokens"
        case = Case(name, subject, settings, limit, returned)
        (covering if k == (i + j + row) % 3 else others).append(case)
    return covering, others


def _rule(name: str, settings: dict[str, Any], subject: str = "bart", **more: Any) -> Case:
    chosen = {"num_beams": 4, "length_penalty": 0.8} | settings
    return Case(name, subject, chosen, **{"returned": 4} | more)


WORDS = [[a, b] for a in range(12, 31) for b in range(14, 23)]

RULES = [
    _rule("length penalty 0", {"length_penalty": 0.0, "early_stopping": "never"}),
    _rule("length penalty -1", {"length_penalty": -1.0, "early_stopping": "never"}, "t5"),
    _rule("length penalty -1, early", {"length_penalty": -1.0, "early_stopping": True}),
    _rule("length penalty -1, estimated", {"length_penalty": -1.0}, "marian"),
    _rule("one end token", {"eos_token_id": 15}, "t5"),
    _rule("no end token", {"eos_token_id": []}),
    _rule("repetition penalty", {"repetition_penalty": 1.4}),
    _rule("repetition is rewarded", {"repetition_penalty": 0.7}, "mbart"),
    _rule("no pair twice", {"no_repeat_ngram_size": 2}),
    _rule("no token twice", {"no_repeat_ngram_size": 1, "early_stopping": True}, "mbart"),
    _rule("no pair of the source", {"encoder_no_repeat_ngram_size": 2}, together=False),
    _rule("no token of the source", {"encoder_no_repeat_ngram_size": 1}, "t5", together=False),
    _rule("bad words", {"bad_words_ids": [*WORDS, [9], [7, 8, 9]]}),
    _rule("forced first", {"forced_bos_token_id": 5, "early_stopping": True}),
    _rule("forced last", {"forced_eos_token_id": 9}, limit=7),
    _rule("forced last, long", {"forced_eos_token_id": 9, "length_penalty": 2.0}, "pegasus"),
    _rule("forced first and last", {"forced_bos_token_id": 5, "forced_eos_token_id": 9}, limit=3),
    _rule("only forced", {"forced_bos_token_id": 5, "forced_eos_token_id": 9}, limit=2),
    _rule("suppressed", {"suppress_tokens": [3, 4, 5, 9, 20, 99]}),
    _rule("suppressed first", {"begin_suppress_tokens": list(range(20))}),
    _rule("suppressed after forced", {"begin_suppress_tokens": list(range(20))}, "mbart"),
    _rule("minimum length", {"min_length": 8, "early_stopping": True}),
    _rule("minimum of new tokens", {"min_new_tokens": 8}, "mt5"),
    _rule("minimum beyond the limit", {"min_new_tokens": 30}, limit=9),
    _rule("everything", {
        "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words_ids": WORDS[:40],
        "forced_eos_token_id": 2, "min_length": 5, "suppress_tokens": [8],
        "begin_suppress_tokens": [4, 7], "early_stopping": True,
    }),
    _rule("renormalized, nothing forbidden", {"renormalize_logits": True}, "t5"),
    _rule("renormalized, suppressed", {"renormalize_logits": True,
                                       "suppress_tokens": [3, 4, 5, 9, 20, 99]}),
    _rule("renormalized, minimum", {"renormalize_logits": True, "min_new_tokens": 8,
                                    "length_penalty": 2.0}, "mt5"),
    _rule("renormalized, all rules", {
        "renormalize_logits": True, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3,
        "bad_words_ids": WORDS[:40], "forced_eos_token_id": 2, "suppress_tokens": [8],
    }),
    _rule("renormalized, decoder-only", {"renormalize_logits": True, "min_new_tokens": 4,
                                         "no_repeat_ngram_size": 2}, "gpt2", together=False),
    _rule("one token", {}, limit=1),
    _rule("one token, forced", {}, "mbart", limit=1),
    _rule("two tokens", {"early_stopping": "never"}, limit=2),
    _rule("hardly a token left", {"suppress_tokens": list(range(4, 31))}, limit=6, returned=1),
    _rule("no token left", {
        "bad_words_ids": [[w] for w in range(31)], "begin_suppress_tokens": list(range(31)),
    }),
    _rule("no second token", {"bad_words_ids": [[5, w] for w in range(31)],
                              "forced_bos_token_id": 5}),
    _rule("as many beams as tokens", {"num_beams": 31}, limit=5, returned=31),
    _rule("one source", {"early_stopping": True}, together=False),
    _rule("one source, estimated", {"early_stopping": False}, "t5", together=False),
    _rule("one source, never", {"early_stopping": "never"}, "marian", together=False),
    _rule("decoder-only", {"early_stopping": "never"}, "gpt2", together=False),
    _rule("repetition of the prompt", {"repetition_penalty": 1.4}, "gpt2", together=False),
    _rule("no pair of the prompt", {"no_repeat_ngram_size": 2}, "gpt2", together=False),
    _rule("minimum with the prompt", {"min_length": 9}, "gpt2", together=False),
    _rule("minimum after the prompt", {"min_new_tokens": 8}, "gpt2"),
    _rule("bad words after the prompt", {"bad_words_ids": [*WORDS, [9], [2, 30], [5, 7]],
                                         "suppress_tokens": [8]}, "gpt2"),
    _rule("first after the prompt", {"begin_suppress_tokens": list(range(20)),
                                     "forced_eos_token_id": 9}, "gpt2", limit=7, together=False),
    _rule("without times", {"repetition_penalty": 1.2, "min_new_tokens": 5}, "whisper"),
]  # fmt: skip
"""Each rule with beams, and what is at the edges."""

COMBINATIONS = [_combinations(name, row) for row, name in enumerate(MODELS)]
CASES = [case for covering, _ in COMBINATIONS for case in covering] + RULES
OTHER_CASES = [case for _, others in COMBINATIONS for case in others]
