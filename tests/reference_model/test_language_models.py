"""Language models: their training, their perplexity, and where their outputs must end."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from dragoman.reference_model import (
    GenerationConfig,
    LanguageModel,
    ModelConfig,
    beam_search_uncached,
    greedy_uncached,
    load_checkpoint,
)
from dragoman.reference_model.recipes import (
    Data,
    Example,
    Recipe,
    evaluate,
    g2p_en,
    read_examples,
    run_recipe,
    verses_en,
)
from dragoman.reference_model.recipes.run import perplexity, whole_texts
from dragoman.reference_model.training import TrainingOptions, train
from dragoman.reference_model.training import run as run_module
from dragoman.reference_model.training.loss import predictions
from dragoman.reference_model.training.options import learning_rate

START, END = 1, 2
COUNTING = [
    Example("one two", (" three four five",)),
    Example("two three", (" four", " four five")),
]
OPTIONS = TrainingOptions(
    epochs=3, batch_tokens=30, warmup_steps=10, average_epochs=1, label_smoothing=0.0
)
DATA = Data(COUNTING * 5, COUNTING[:1], COUNTING)


def make_config(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "source_vocab_size": 0,
        "target_vocab_size": 21,
        "encoder_layers": 0,
        "max_source_positions": 0,
        "decoder_layers": 2,
        "d_model": 24,
        "num_heads": 3,
        "d_ff": 40,
        "norm_order": "pre",
        "positions": "learned",
        "max_target_positions": 12,
        "dropout": 0.0,
    }
    return ModelConfig.from_dict(values | changes)


def make_model(seed: int = 0, **changes: object) -> LanguageModel:
    torch.manual_seed(seed)
    model = LanguageModel(make_config(**changes)).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


@pytest.fixture(scope="module")
def target() -> Tokenizer:
    return verses_en.make_target_tokenizer()


def test_every_token_is_predicted_from_those_before_it() -> None:
    """Padding changes nothing: each text gives the same as in a batch of one."""
    model = make_model()
    texts = [[5, 9, 4, 4, END], [END], [7, 20, END]]
    logits, tokens = predictions(model, [((), text) for text in texts])
    assert tokens.tolist() == [token for text in texts for token in text]
    alone = [model(torch.tensor([[START, *text[:-1]]]))[0] for text in texts]
    torch.testing.assert_close(logits, torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_texts_are_whole(target: Tokenizer) -> None:
    pairs = whole_texts(COUNTING, target)
    assert [source for source, _ in pairs] == [(), (), ()]
    texts = [target.decode(list(text)) for _, text in pairs]
    assert texts == ["one two three four five", "two three four", "two three four five"]
    assert all(text[-1] == END for _, text in pairs)


def test_perplexity_of_a_model_that_knows_nothing_is_its_vocabulary(target: Tokenizer) -> None:
    model = LanguageModel(make_config(target_vocab_size=verses_en.VOCABULARY)).eval()
    for parameter in model.parameters():
        parameter.data.zero_()
    figures = perplexity(model, COUNTING, target)
    tokens = sum(len(text) for _, text in whole_texts(COUNTING, target))
    characters = len("one two three four five" + "two three four" + "two three four five")
    assert figures["perplexity"] == pytest.approx(2048, rel=1e-6)
    assert figures["bits per character"] == pytest.approx(11 * tokens / characters, rel=1e-6)


def test_perplexity_by_hand(target: Tokenizer) -> None:
    model = make_model(target_vocab_size=verses_en.VOCABULARY)
    nats, tokens = 0.0, 0
    for _, text in whole_texts(COUNTING, target):
        probabilities = model(torch.tensor([[START, *text[:-1]]]))[0].double().softmax(-1).tolist()
        nats -= sum(math.log(row[token]) for row, token in zip(probabilities, text, strict=True))
        tokens += len(text)
    figures = perplexity(model, COUNTING, target)
    assert figures["perplexity"] == pytest.approx(math.exp(nats / tokens), rel=1e-6)


@pytest.mark.parametrize("prompt", [[START], [START, 8, 4], [*range(3, 14)], [*range(3, 15)]])
@pytest.mark.parametrize("limit", [1, 7, 12, 100])
def test_outputs_end_where_the_positions_do(prompt: list[int], limit: int) -> None:
    """The last token is not read, so there may be one more than the model has positions."""
    model = make_model()
    model.generation = GenerationConfig(end_token_ids=(), num_beams=3)
    expected = min(limit, 13 - len(prompt))
    ((*output,),) = greedy_uncached(model, [prompt], limit)
    assert len(output) == expected
    ((best, *_),) = beam_search_uncached(model, [prompt], limit)
    assert len(best.tokens) == expected


def cycles() -> list[tuple[Sequence[int], list[int]]]:
    """3 4 5 6 3 4 ...: begun anywhere, of any length."""
    return [
        ((), [*(3 + (first + i) % 4 for i in range(length)), END])
        for first in range(4)
        for length in range(2, 9)
    ]


def trained(directory: Path, seed: int, options: TrainingOptions = OPTIONS) -> LanguageModel:
    torch.manual_seed(seed)
    model = LanguageModel(make_config(dropout=0.1))
    train(
        model,
        cycles(),
        cycles()[:3],
        options,
        directory,
        evaluate=lambda _: 0.0,
        metric_name="nothing",
    )
    return model


def test_a_tiny_model_learns_a_cycle(tmp_path: Path) -> None:
    options = replace(OPTIONS, epochs=40, learning_rate_scale=0.5)
    model = trained(tmp_path, 0, options)
    (output,) = greedy_uncached(model, [[START, 4, 5]], 3)
    assert output == [6, 3, 4]
    losses = [
        json.loads(line)["loss"]
        for line in (tmp_path / "history.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    # What cannot be known: where a cycle begins, and where it ends.
    assert losses[-1] < losses[0] / 3


def test_an_interrupted_training_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = replace(OPTIONS, save_every=2)
    whole = trained(tmp_path / "whole", 0, options)

    def interrupt(options: TrainingOptions, step: int, **more: int) -> float:
        if step > 11:
            raise KeyboardInterrupt
        return learning_rate(options, step, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_module, "learning_rate", interrupt)
        trained(tmp_path / "part", 0, options)
    resumed = trained(tmp_path / "part", 5, options)  # other initial weights, which are not used
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, resumed.get_parameter(name))


@pytest.fixture
def recipe(target: Tokenizer) -> Recipe:
    return replace(
        verses_en.RECIPE,
        name="counting",
        config=make_config(target_vocab_size=verses_en.VOCABULARY, max_target_positions=20),
        options=OPTIONS,
        load_data=lambda _: DATA,
        licences={"LICENSE-numbers.txt": lambda: "Free as the air.\n"},
    )


def test_a_run_writes_a_complete_checkpoint(recipe: Recipe, tmp_path: Path) -> None:
    directory, tokenizers = tmp_path / "model", recipe.make_tokenizers(DATA)
    figures = run_recipe(recipe, DATA, directory, tmp_path / "work").figures
    assert figures.keys() == {"perplexity", "bits per character"}
    model = load_checkpoint(directory)
    assert isinstance(model, LanguageModel)
    assert evaluate(model, recipe, tokenizers, COUNTING) == figures
    assert read_examples(directory / "held_out.tsv") == COUNTING
    record = json.loads((directory / "recipe.json").read_text(encoding="utf-8"))
    assert "unknown characters" not in record  # they are not counted
    source = Tokenizer.from_file(str(directory / "source_tokenizer.json"))
    assert source.encode("one two").ids[0] == START
    history = (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
    validation = [json.loads(line)["metric"] for line in history]
    figures = evaluate(model, recipe, tokenizers, COUNTING[:1])
    assert validation[-1] == pytest.approx(figures["perplexity"])
    losses = [json.loads(line)["validation_loss"] for line in history]
    assert validation == pytest.approx([math.exp(loss) for loss in losses])
    assert validation[0] > validation[-1]


def test_figures_are_shown_as_people_read_them(recipe: Recipe) -> None:
    assert recipe.shown(24.518) == "24.52"
    assert g2p_en.RECIPE.shown(0.2841) == "28.41%"
