"""The third level: the recipe's own metric on the oracle's output and on the bundle's."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from dragoman.benchmarks.parity import ParityInputs, check_parity, describe_failure
from dragoman.benchmarks.parity.oracle import for_torch
from dragoman.benchmarks.parity.task import compare_task
from dragoman.reference_model import Transformer, greedy_uncached
from dragoman.reference_model.recipes import Data, Example, Recipe
from dragoman.reference_model.recipes import Tokenizers as BothTokenizers
from dragoman.reference_model.training import TrainingOptions
from dragoman.runtime import Model, load
from dragoman.runtime.format.records import TaskParity
from dragoman.runtime.format.tokenizers import Tokenizers
from dragoman.runtime.format.writing import write_manifest

from ..bundle_files import record_files


def make_target_tokenizer() -> Tokenizer:
    """t3 is token 3, and so on."""
    vocabulary = {f"t{i}": i for i in range(3, 19)} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    return tokenizer


def score(hypotheses: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
    wrong = sum(
        hypothesis not in example.references
        for hypothesis, example in zip(hypotheses, examples, strict=True)
    )
    return {"error": wrong / len(examples), "something else": 0.0}


@pytest.fixture(scope="module")
def speaking(bundle: Model, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The bundle with tokenizers: its texts are scored."""
    directory = tmp_path_factory.mktemp("bundles") / "speaking"
    shutil.copytree(bundle.bundle.directory, directory)
    files = Tokenizers("source.json", "target.json")
    for name in files.files:
        make_target_tokenizer().save(str(directory / name))
    recorded = record_files(directory)
    write_manifest(
        dataclasses.replace(bundle.manifest, tokenizers=files, files=recorded), directory
    )
    return load(directory, threads=1)


@pytest.fixture
def recipe(reference: Transformer) -> Recipe:
    return Recipe(
        name="small",
        summary="a recipe for tests",
        config=reference.config,
        options=TrainingOptions(epochs=1),
        load_data=lambda _: Data([], [], []),
        make_tokenizers=lambda _: BothTokenizers(make_target_tokenizer(), make_target_tokenizer()),
        metric="error",
        score=score,
        licences={},
    )


@pytest.fixture
def inputs(
    reference: Transformer, recipe: Recipe, make_sources: Callable[..., list[list[int]]]
) -> ParityInputs:
    """Eight sources; six of the references equal the oracle's output, two do not."""
    sources = make_sources([5, 1, 16, 9, 2, 12, 3, 7])
    decode = make_target_tokenizer().decode
    outputs = [decode(output) for output in greedy_uncached(reference, sources, 12)]
    references = [*outputs[:6], "t3 wrong", "t4 wrong"]
    examples = [Example(str(i), ("never", text)) for i, text in enumerate(references)]
    return ParityInputs("eight", sources, examples=examples, recipe=recipe)


def test_the_metric_of_both_is_recorded(
    speaking: Model, reference: Transformer, inputs: ParityInputs
) -> None:
    parity = check_parity(speaking, reference, inputs, backend="onnxruntime")
    assert parity.passed
    assert parity.task == TaskParity("error", oracle=0.25, bundle=0.25, passed=True)


def test_without_references_or_recipe_there_is_no_task_level(
    speaking: Model, reference: Transformer, inputs: ParityInputs
) -> None:
    for without in (
        dataclasses.replace(inputs, examples=None),
        dataclasses.replace(inputs, recipe=None),
    ):
        assert compare_task(speaking, without, [], []) is None


@pytest.mark.parametrize(("spoilt", "passes"), [([], True), ([0], False), ([6], True)])
def test_worse_output_fails_and_other_wrong_output_does_not(
    speaking: Model,
    reference: Transformer,
    inputs: ParityInputs,
    spoilt: list[int],
    passes: bool,
) -> None:
    oracle = greedy_uncached(reference, [for_torch(s) for s in inputs.sources], 12)
    found = [[3, 2] if i in spoilt else row for i, row in enumerate(oracle)]
    task = compare_task(speaking, inputs, oracle, found)
    assert task is not None
    assert task.passed == passes
    assert (task.oracle, task.bundle) == (0.25, 0.25 if passes else 0.375)


def test_better_than_the_oracle_passes(
    speaking: Model, reference: Transformer, inputs: ParityInputs
) -> None:
    found = greedy_uncached(reference, [for_torch(s) for s in inputs.sources], 12)
    task = compare_task(speaking, inputs, [[3], *found[1:]], found)
    assert task == TaskParity("error", oracle=0.375, bundle=0.25, passed=True)


def test_a_failed_task_is_reported(
    speaking: Model, reference: Transformer, inputs: ParityInputs
) -> None:
    parity = check_parity(speaking, reference, inputs, backend="onnxruntime")
    failed = dataclasses.replace(
        parity, passed=False, task=TaskParity("error", oracle=0.25, bundle=0.375, passed=False)
    )
    assert describe_failure(failed).startswith(
        "parity failed: error is 37.50%, the oracle's 25.00%"
    )
