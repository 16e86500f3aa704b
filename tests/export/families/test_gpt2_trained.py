"""GPT-2 with trained weights: verses-en as Hugging Face runs it, from prompts to perplexity.

`transformers` gets the weights of the shipped model, arranged by hand, and writes its own directory
of them; the directory is what is read here.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from dragoman.export.checkpoints import read_checkpoint
from dragoman.export.families.checkpoint import Checkpoint
from dragoman.export.neutral_bundle import export_bundle
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import LanguageModel, load_checkpoint
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import Example, read_examples, verses_en
from dragoman.runtime import Model, Result, load

transformers: Any = importlib.import_module("transformers")

START, END = 1, 2
SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
NEW = 40


@dataclass(frozen=True)
class Theirs:
    """The model and its tokenizer in `transformers`, and the directory that they wrote."""

    model: Any
    tokenizer: Any
    directory: Path

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text)["input_ids"]
        return ids

    def text(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    @torch.inference_mode()
    def generate(self, prompt: str, **options: Any) -> tuple[list[int], float | None]:
        """New tokens, up to and including the end token, and the score of a beam."""
        ids = torch.tensor([self.ids(prompt)])
        found = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            return_dict_in_generate=True,
            output_scores=True,
            **{"max_new_tokens": NEW, "do_sample": False} | options,
        )
        new: list[int] = found.sequences[0, ids.shape[1] :].tolist()
        score = getattr(found, "sequences_scores", None)
        return new[: new.index(END) + 1] if END in new else new, None if score is None else score[0]

    @torch.inference_mode()
    def log_probabilities(self, ids: list[int]) -> Tensor:
        """Scores of each token but the first, in nats."""
        values = self.model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
        chosen: Tensor = values[torch.arange(len(ids) - 1), ids[1:]]
        return chosen


def arranged(weights: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """The weights of verses-en under the names of `GPT2LMHeadModel`, which stores products as
    [in, out] and those of query, key and value as one."""
    theirs = {
        "transformer.wte.weight": weights["decoder.embedding.tokens.weight"],
        "lm_head.weight": weights["decoder.embedding.tokens.weight"],
        "transformer.wpe.weight": weights["decoder.embedding.positions.table"],
        "transformer.ln_f.weight": weights["decoder.norm.gain"],
        "transformer.ln_f.bias": weights["decoder.norm.bias"],
    }
    for i in range(layers):
        ours, h = f"decoder.layers.{i}", f"transformer.h.{i}"
        attention, forward = f"{ours}.self_attention", f"{ours}.feed_forward"
        for kind in ("weight", "bias"):
            parts = [weights[f"{attention}.{part}.{kind}"] for part in ("query", "key", "value")]
            theirs[f"{h}.attn.c_attn.{kind}"] = torch.cat(parts).t()
            theirs[f"{h}.attn.c_proj.{kind}"] = weights[f"{attention}.output.{kind}"].t()
            theirs[f"{h}.mlp.c_fc.{kind}"] = weights[f"{forward}.inner.{kind}"].t()
            theirs[f"{h}.mlp.c_proj.{kind}"] = weights[f"{forward}.outer.{kind}"].t()
        for number, part in ((1, attention), (2, forward)):
            theirs[f"{h}.ln_{number}.weight"] = weights[f"{part}_residual.norm.gain"]
            theirs[f"{h}.ln_{number}.bias"] = weights[f"{part}_residual.norm.bias"]
    return theirs


@pytest.fixture(scope="module")
def shipped() -> LanguageModel:
    model = load_checkpoint(find_checkpoint("verses-en"))
    assert isinstance(model, LanguageModel)
    return model


@pytest.fixture(scope="module")
def theirs(shipped: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    config = shipped.config
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.target_vocab_size,
            n_embd=config.d_model,
            n_layer=config.decoder_layers,
            n_head=config.num_heads,
            n_positions=config.max_target_positions,
            bos_token_id=START,
            eos_token_id=END,
            pad_token_id=0,
        )
    ).eval()
    weights = {name: p.detach() for name, p in shipped.named_parameters()}
    model.load_state_dict(arranged(weights, config.decoder_layers))
    of_source, of_target = (
        Tokenizer.from_file(str(find_checkpoint("verses-en") / f"{side}_tokenizer.json"))
        for side in ("source", "target")
    )
    of_source.normalizer = of_target.normalizer  # one tokenizer reads continuations, too
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=of_source,
        **SPECIAL_TOKENS,
    )
    directory = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return Theirs(model, tokenizer, directory)


@pytest.fixture(scope="module")
def checkpoint(theirs: Theirs) -> Checkpoint:
    return read_checkpoint(theirs.directory)


@pytest.fixture(scope="module")
def bundles(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    directory = tmp_path_factory.mktemp("bundles")
    for name in ("neutral", "fp32", "int8"):
        (directory / name).mkdir()
    neutral = export_bundle(
        checkpoint.model, directory / "neutral", name="verses", tokenizers=checkpoint.tokenizers
    )
    optimize_bundle(neutral, directory / "fp32", target="cpu", precision="fp32")
    optimize_bundle(neutral, directory / "int8", target="cpu", precision="int8")
    return {name: load(directory / name, threads=1) for name in ("neutral", "fp32", "int8")}


@pytest.fixture(scope="module")
def held_out() -> list[Example]:
    return read_examples(find_checkpoint("verses-en") / "held_out.tsv")


@pytest.fixture(scope="module")
def prompts(held_out: list[Example]) -> list[str]:
    """A dozen prompts of unequal lengths, one of them a whole verse, one a single word."""
    prompts = [example.source for example in held_out[:: len(held_out) // 10]][:10]
    return [*prompts, held_out[3].source + held_out[3].references[0], "God"]


def found_tokens(result: Result) -> list[int]:
    return [*result.tokens, *([] if result.end_token is None else [result.end_token])]


def test_the_weights_are_the_shipped_ones(checkpoint: Checkpoint, shipped: LanguageModel) -> None:
    found = dict(checkpoint.model.named_parameters())
    assert found.keys() == dict(shipped.named_parameters()).keys()
    for name, parameter in shipped.named_parameters():
        assert torch.equal(found[name], parameter), name
    assert checkpoint.model.config.replace(dropout=0.1) == shipped.config


def test_logits(checkpoint: Checkpoint, theirs: Theirs, prompts: list[str]) -> None:
    for prompt in prompts:
        ids = torch.tensor([theirs.ids(prompt)])
        with torch.inference_mode():
            expected, found = theirs.model(ids).logits, checkpoint.model(ids)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["neutral", "fp32"])
@pytest.mark.parametrize("beams", [1, 4])
def test_outputs(
    name: str, beams: int, bundles: dict[str, Model], theirs: Theirs, prompts: list[str]
) -> None:
    results = bundles[name].generate(prompts, max_new_tokens=NEW, num_beams=beams)
    for prompt, result in zip(prompts, results, strict=True):
        tokens, score = theirs.generate(prompt, num_beams=beams)
        assert found_tokens(result) == tokens, prompt
        assert result.text == theirs.text(tokens)
        if beams > 1:
            assert result.score == pytest.approx(float(score or 0.0), abs=1e-4)


def test_streams(bundles: dict[str, Model], theirs: Theirs, prompts: list[str]) -> None:
    for prompt in prompts[:4]:
        pieces = list(bundles["fp32"].stream(prompt, max_new_tokens=NEW))
        tokens, _ = theirs.generate(prompt)
        assert [piece.id for piece in pieces] == list(tokens)
        assert [piece.is_end for piece in pieces] == [token == END for token in tokens]
        assert "".join(piece.text or "" for piece in pieces) == theirs.text(tokens)


def test_scores(bundles: dict[str, Model], theirs: Theirs, held_out: list[Example]) -> None:
    chosen = held_out[::100]
    pairs = [(example.source, example.references[0]) for example in chosen]
    for example, scored in zip(chosen, bundles["fp32"].score(pairs), strict=True):
        ids = theirs.ids(example.source + example.references[0])
        rest = theirs.log_probabilities(ids)[len(theirs.ids(example.source)) - 1 :]
        assert scored.error is None
        assert scored.token_log_probabilities == pytest.approx(rest.tolist(), abs=1e-4)


@pytest.mark.parametrize(("name", "tolerance"), [("fp32", 1e-5), ("int8", 0.02)])
def test_perplexity(
    name: str,
    tolerance: float,
    bundles: dict[str, Model],
    theirs: Theirs,
    held_out: list[Example],
) -> None:
    """The perplexity of whole verses that the model has not seen, with their end tokens."""
    verses = [example.source + example.references[0] for example in held_out[::10]]
    scored = bundles[name].score(verses, end_token=True)
    tokens = sum(len(pair.tokens) for pair in scored)
    found = -sum(pair.log_probability for pair in scored) / tokens
    values = [theirs.log_probabilities([*theirs.ids(verse), END]) for verse in verses]
    assert tokens == sum(len(each) for each in values)
    expected = -float(torch.cat(values).sum()) / tokens
    assert found == pytest.approx(expected, abs=tolerance)
    assert math.exp(expected) < verses_en.VOCABULARY / 20  # it has learned something
