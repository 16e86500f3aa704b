"""The third level: metrics of the oracle's output and of the bundle's."""

from __future__ import annotations

import dataclasses
import random
import shutil
from collections.abc import Callable, Sequence

import pytest
import sacrebleu
from tokenizers import Tokenizer, models, pre_tokenizers

from dragoman.cli.shared.tables import print_parity
from dragoman.metrics import METRICS, describe_undecided, find_metric
from dragoman.reference_model import Transformer, greedy_uncached
from dragoman.reference_model.recipes import Data, Example, Recipe
from dragoman.reference_model.recipes import Tokenizers as BothTokenizers
from dragoman.reference_model.training import TrainingOptions
from dragoman.runtime import Model, load
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import Parity, TaskParity
from dragoman.runtime.format.texts import Tokenizers
from dragoman.runtime.format.writing import write_manifest
from dragoman.verification.checks.task import compare_task, judged
from dragoman.verification.inputs.parity_inputs import ParityInputs, RecipeMetric, Task
from dragoman.verification.parity import check_parity
from dragoman.verification.verdict import describe_failure

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
    # Eight texts: two, as there were here, decide nothing below fp32 however wrong they are.
    numbers = ("one two three", "two four", "six seven eight nine", "ten one", "five", "nine six")
    texts, metric = [f"{n} four five" for n in (*numbers, "eight", "seven two")], METRICS[name]
    references = [[text] for text in texts]
    found = judged(metric, texts, texts, references, precision)
    assert found.allowed is not None
    assert 100 * found.allowed / metric.whole == pytest.approx(allowed)
    assert found.passed and found.chance == 1.0
    other = judged(metric, texts, ["something", "else"] * 4, references, precision)
    assert not other.passed and other.loss > found.allowed
    assert not other.undecided and other.more_inputs is None
    assert found.excess_chance is None
    assert (other.excess_chance is None) == (precision == "fp32")


def exact_match(lost: int, gained: int, of: int, precision: Precision = "int8") -> TaskParity:
    """Some texts are right, and of the bundle some others are."""
    right = [f"t{i}" for i in range(of)]
    oracle = [*["wrong"] * gained, *right[gained:]]
    bundle = [*right[: of - lost], *["wrong"] * lost]
    return judged(METRICS["exact-match"], oracle, bundle, [[text] for text in right], precision)


def test_a_loss_that_may_be_chance_is_undecided() -> None:
    """By hand: 2 of 80 texts are 2.5 points, 2.2 more than allowed. A text deviates by
    sqrt(0.025 0.975) = 15.6 points, around what is allowed 15.77, so that the loss is
    sqrt(80) 2.2 / 15.77 = 1.248 standard errors, less 1 / sqrt(2) for its two steps 0.541, which
    chance exceeds with p = 0.294. Of n texts it is sqrt(n) 0.1395 - sqrt(40 / n): 1.645 at 220."""
    found = exact_match(2, 0, 80)
    assert found.loss == pytest.approx(0.025) and found.allowed == 0.003
    assert found.passed and found.undecided
    assert found.excess_chance == pytest.approx(0.294, abs=0.01)
    assert found.more_inputs == pytest.approx(140, abs=10)


def test_how_many_more_inputs_would_decide() -> None:
    """By hand: of 400 texts 12 are lost and 8 won. The loss is 1 point, 0.7 more than allowed. A
    text deviates by sqrt(20 / 400 - 0.01^2) = 22.34 points: sqrt(400) 0.7 / 22.35 = 0.626 standard
    errors, less 1 / sqrt(20) 0.403. Of n texts it is sqrt(n) 0.03132 - sqrt(20 / n): 1.645 at 3034.
    The bootstrap's error is right to a few percent."""
    found = exact_match(12, 8, 400)
    assert found.undecided and found.passed
    assert found.excess_chance == pytest.approx(0.344, abs=0.01)
    assert found.more_inputs == pytest.approx(2634, rel=0.12)
    assert found.more_inputs is not None and found.more_inputs % 100 == 0  # no more digits than two


@pytest.mark.parametrize(("lost", "gained"), [(7, 0), (40, 0), (30, 10)])
def test_a_loss_that_is_no_chance_fails(lost: int, gained: int) -> None:
    found = exact_match(lost, gained, 80)
    assert (found.passed, found.undecided, found.more_inputs) == (False, False, None)
    assert found.excess_chance is not None and found.excess_chance < 0.05


def test_what_is_within_the_tolerance_passes_though_it_is_no_chance() -> None:
    """10 of 4,000 texts are lost, significantly, but only a quarter of a point of the 0.3."""
    found = exact_match(10, 0, 4000)
    assert found.chance is not None and found.chance < 0.05
    assert found.passed and not found.undecided and found.excess_chance is None


def test_fp32_has_no_tolerance_and_decides_by_one_text() -> None:
    assert not exact_match(1, 0, 4000, "fp32").passed
    assert exact_match(1, 1, 4000, "fp32").passed


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_texts_decide_nothing(count: int) -> None:
    found = exact_match(count, 0, count)
    assert found.loss == 1 and found.passed and found.undecided
    assert (found.more_inputs is None) == (count == 1)


def test_right_bundles_are_rarely_refused() -> None:
    """12 of 80 texts differ, each as likely better as worse: no more than one in twenty is refused,
    and the others with a loss are undecided."""
    generator = random.Random(0)
    lost = [sum(generator.random() < 0.5 for _ in range(12)) for _ in range(400)]
    outcome = {n: exact_match(n, 12 - n, 80) for n in set(lost)}
    refused = sum(not outcome[n].passed for n in lost)
    assert 0 < refused <= 20
    assert all(outcome[n].undecided for n in (7, 8))


@pytest.mark.parametrize("name", ["bleu", "chrf", "word-error", "rouge-l"])
def test_every_metric_knows_its_spread(name: str) -> None:
    """The standard error of the difference shrinks with the square root of the texts: four times
    the same texts have half of it."""
    generator = random.Random(1)
    texts = [" ".join(generator.choices("abcdefgh", k=8)) for _ in range(60)]
    worse = [text[:-4] if i % 3 == 0 else text for i, text in enumerate(texts)]
    references, metric = [[text] for text in texts], METRICS[name]
    spread = metric.spread(texts, worse, references)
    again = metric.spread(texts * 4, worse * 4, references * 4)
    assert spread > 0
    assert again == pytest.approx(spread / 2, rel=0.1)
    assert metric.spread(texts, texts, references) == 0


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


def test_an_undecided_task_is_shown_with_what_would_decide(
    speaking: Model,
    reference: Transformer,
    inputs: ParityInputs,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parity = check_parity(speaking, reference, inputs, backend="onnxruntime")
    task = TaskParity(
        "BLEU", 41.0, 40.1, True, True, 0.3, 0.31, 80, "", 0.22, undecided=True, more_inputs=400
    )
    monkeypatch.setenv("COLUMNS", "250")
    print_parity(dataclasses.replace(parity, tasks=(task,)))
    (row,) = [row for row in capsys.readouterr().out.splitlines() if "BLEU" in row]
    assert (
        "undecided: 0.9 points worse on 80 texts, allowed 0.3; about 400 more texts would decide"
    ) in row
    assert "passed" not in row and "failed" not in row


def test_shares_are_described_in_points_as_well() -> None:
    assert describe_undecided("word error", 0.0125, 0.003, 80, 12000) == (
        "undecided: 1.25 points worse on 80 texts, allowed 0.3; about 12,000 more texts would "
        "decide"
    )
    assert describe_undecided("exact match", 1, 0.003, 1, None) == (
        "undecided: 100 points worse on 1 text, allowed 0.3; more texts would decide"
    )
