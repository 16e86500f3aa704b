"""The third level: metrics of the oracle's output and of the bundle's."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Sequence

import pytest
import sacrebleu
from tokenizers import Tokenizer, models, pre_tokenizers

from dragoman.metrics import METRICS, find_metric
from dragoman.reference_model import Transformer, greedy_uncached
from dragoman.reference_model.recipes import Data, Example, Recipe
from dragoman.reference_model.recipes import Tokenizers as BothTokenizers
from dragoman.reference_model.training import TrainingOptions
from dragoman.runtime import Model, load
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.records import Parity, TaskParity
from dragoman.runtime.format.tokenizers import Tokenizers
from dragoman.runtime.format.writing import write_manifest
from dragoman.verification import ParityInputs, check_parity, describe_failure
from dragoman.verification.checks.task import compare_task, judged
from dragoman.verification.inputs.metrics import RecipeMetric, Task

from ..bundle_files import record_files


def make_target_tokenizer() -> Tokenizer:
    """t3 is token 3, and so on."""
    vocabulary = {f"t{i}": i for i in range(3, 19)} | {"<pad>": 0, "<s>": 1, "</s>": 2}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<pad>", "<s>", "</s>"])
    return tokenizer


def decode(tokens: Sequence[int]) -> str:
    return str(make_target_tokenizer().decode(list(tokens)))


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


@pytest.fixture(scope="module")
def sources(make_sources: Callable[..., list[list[int]]]) -> list[list[int]]:
    return make_sources([5, 1, 16, 9, 2, 12, 3, 7])


@pytest.fixture(scope="module")
def outputs(reference: Transformer, sources: list[list[int]]) -> list[list[int]]:
    return greedy_uncached(reference, sources, 12)


@pytest.fixture
def task(outputs: list[list[int]], recipe: Recipe) -> Task:
    """Eight sources; six of the references equal the oracle's output, two do not."""
    texts = [*map(decode, outputs[:6]), "t3 wrong", "t4 wrong"]
    metric = RecipeMetric(recipe, [str(i) for i in range(8)])
    return Task([metric], [("never", text) for text in texts], [[i] for i in range(8)])


@pytest.fixture
def inputs(sources: list[list[int]], task: Task) -> ParityInputs:
    return ParityInputs("eight", sources, decode=decode, task=task)


def test_the_metric_of_both_is_recorded(
    speaking: Model, reference: Transformer, inputs: ParityInputs
) -> None:
    parity = check_parity(speaking, reference, inputs, backend="onnxruntime")
    assert parity.passed
    assert parity.tasks == (
        TaskParity(
            "error",
            oracle=0.25,
            bundle=0.25,
            passed=True,
            allowed=0.0,
            chance=1.0,
            pairs=8,
            signature="recipe:small",
        ),
    )


def test_without_references_there_is_no_task_level(
    speaking: Model, reference: Transformer, inputs: ParityInputs
) -> None:
    without = dataclasses.replace(inputs, task=None)
    assert check_parity(speaking, reference, without, backend="").tasks == ()


@pytest.mark.parametrize(("spoilt", "passes"), [([], True), ([0], False), ([6], True)])
def test_worse_output_fails_and_other_wrong_output_does_not(
    speaking: Model, task: Task, outputs: list[list[int]], spoilt: list[int], passes: bool
) -> None:
    found = [[3, 2] if i in spoilt else row for i, row in enumerate(outputs)]
    (compared,) = compare_task(speaking, task, decode, outputs, found)
    assert compared.passed == passes
    assert (compared.oracle, compared.bundle) == (0.25, 0.25 if passes else 0.375)


def test_better_than_the_oracle_passes(
    speaking: Model, task: Task, outputs: list[list[int]]
) -> None:
    (compared,) = compare_task(speaking, task, decode, [[3], *outputs[1:]], outputs)
    assert (compared.oracle, compared.bundle, compared.passed) == (0.375, 0.25, True)
    assert compared.loss == -0.125


def test_a_bundle_that_is_worse_in_bleu_fails_and_a_better_one_passes(
    speaking: Model, task: Task, outputs: list[list[int]]
) -> None:
    """Higher is better here, unlike in errors."""
    bleu = dataclasses.replace(task, metrics=[find_metric("bleu")])
    damaged = [[*row[:-3], 3, 2] for row in outputs]
    (worse,) = compare_task(speaking, bleu, decode, outputs, damaged)
    (better,) = compare_task(speaking, bleu, decode, damaged, outputs)
    streams = list(zip(*task.references, strict=True))
    expected = sacrebleu.corpus_bleu([decode(row) for row in damaged], streams).score
    assert worse.bundle == pytest.approx(expected) and worse.bundle < worse.oracle
    assert (worse.passed, better.passed) == (False, True)
    assert worse.higher_is_better and worse.loss == pytest.approx(worse.oracle - worse.bundle)
    assert worse.chance is not None and 0.05 < worse.chance < 1  # eight texts tell little


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(("precision", "allowed"), [("fp32", 0.0), ("int8", 0.3), ("int4", 0.7)])
def test_the_loss_that_is_allowed(name: str, precision: Precision, allowed: float) -> None:
    """In points of a hundred: as many for shares."""
    texts, metric = ["one two three four five", "six seven eight nine ten"], METRICS[name]
    references = [[text] for text in texts]
    found = judged(metric, texts, texts, references, precision)
    assert found.allowed is not None
    assert 100 * found.allowed / metric.whole == pytest.approx(allowed)
    assert found.passed and found.chance == 1.0
    other = judged(metric, texts, ["something", "else"], references, precision)
    assert not other.passed and other.loss > found.allowed


def test_windows_of_a_recording_are_one_text(speaking: Model) -> None:
    task = Task([find_metric("exact-match")], [["t3 t4 t5"], ["t6"]], [range(2), range(2, 3)])
    windows = [[3, 4, 2], [5, 2], [6, 2]]
    (compared,) = compare_task(speaking, task, decode, windows, windows)
    assert (compared.oracle, compared.pairs) == (1.0, 2)
    (worse,) = compare_task(speaking, task, decode, windows, [[3, 4, 2], [2], [6, 2]])
    assert (worse.bundle, worse.passed) == (0.5, False)


def failed(parity: Parity, task: TaskParity) -> str:
    return describe_failure(dataclasses.replace(parity, passed=False, tasks=(task,)))


def test_a_failed_task_is_reported(
    speaking: Model, reference: Transformer, inputs: ParityInputs
) -> None:
    parity = check_parity(speaking, reference, inputs, backend="onnxruntime")
    assert failed(parity, TaskParity("error", oracle=0.25, bundle=0.375, passed=False)) == (
        "parity failed: error is 37.50%, the oracle's 25.00%; a tolerance of 0.125 would pass"
    )
    bleu = TaskParity("BLEU", 41.0, 39.5, False, True, allowed=0.3, chance=0.0123, pairs=8)
    assert failed(parity, bleu) == (
        "parity failed: BLEU is 39.50, the oracle's 41.00 (by chance with p = 0.012); a tolerance "
        "of 1.5 would pass"
    )
