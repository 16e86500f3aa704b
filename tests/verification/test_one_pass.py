"""A bundle compared with itself: what it generates must be what it scores, in every precision.

The faults are in finished graphs, as a careless exporter would leave them: in what a step chooses
or reports, while its scores in one pass, which the distributions judge, are right.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray

from dragoman.cli.shared.tables import print_parity
from dragoman.export import export_bundle
from dragoman.onnx_graphs.graph_files import write_graphs
from dragoman.optimize.target_bundle import optimize_bundle
from dragoman.reference_model import GenerationConfig, LanguageModel, ModelConfig, Transformer
from dragoman.runtime import Bundle, Model, read_bundle
from dragoman.runtime.backends import open_backend
from dragoman.runtime.format.manifest import Precision
from dragoman.runtime.format.parity import (
    BeamParity,
    OtherChoice,
    Parity,
    TaskParity,
    TokenParity,
)
from dragoman.runtime.format.plain_data import Problems, from_plain, to_plain
from dragoman.runtime.format.writing import ScratchWriter
from dragoman.verification.checks.choices import ChoiceMeter, compare_one_pass
from dragoman.verification.checks.tokens import bundle_outputs, greedy_results
from dragoman.verification.inputs.parity_inputs import ParityInputs, random_inputs
from dragoman.verification.numerics import steps
from dragoman.verification.numerics.probes import Probe
from dragoman.verification.oracle import forced_batches, oracle_outputs
from dragoman.verification.parity import check_parity
from dragoman.verification.tolerances import Slack
from dragoman.verification.verdict import describe_failure

PRECISIONS: tuple[Precision, ...] = ("fp32", "int8", "int4")
Fault = Callable[[ir.Graph], None]


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    """GPT-2's kind of model, with random weights of which outputs depend on what they continue."""
    config = ModelConfig.from_dict(
        {
            "source_vocab_size": 0,
            "max_source_positions": 0,
            "target_vocab_size": 61,
            "encoder_layers": 0,
            "decoder_layers": 2,
            "d_model": 32,
            "num_heads": 4,
            "d_ff": 64,
            "norm_order": "pre",
            "positions": "learned",
            "max_target_positions": 24,
            "dropout": 0.0,
        }
    )
    torch.manual_seed(1)
    model = LanguageModel(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.25 * torch.randn_like(parameter)
    return model


@pytest.fixture(scope="module")
def bundles(
    language_model: LanguageModel, tmp_path_factory: pytest.TempPathFactory
) -> dict[Precision, Bundle]:
    directory = tmp_path_factory.mktemp("language")
    (directory / "neutral").mkdir()
    export_bundle(language_model, directory / "neutral", name="language")
    neutral, made = read_bundle(directory / "neutral"), {}
    for precision in PRECISIONS:
        (directory / precision).mkdir()
        made[precision] = optimize_bundle(neutral, directory / precision, precision=precision)
    return made


@pytest.fixture(scope="module")
def inputs(language_model: LanguageModel) -> ParityInputs:
    return random_inputs(language_model, 64)


def parity_of(bundle: Bundle, reference: LanguageModel, inputs: ParityInputs) -> Parity:
    """Without the checks that need no inputs, which see such faults in another way."""
    with Model(bundle, open_backend(bundle, "onnxruntime", 1)) as model:
        parity = check_parity(model, reference, inputs, backend="onnxruntime")
    return dataclasses.replace(parity, checks=())


def faulty(bundle: Bundle, directory: Path, fault: Fault) -> Bundle:
    """A copy with a fault in its decoder, and right hashes."""
    graphs = {name: ir.load(bundle.graph_path(name)) for name in bundle.manifest.graphs}
    fault(graphs["decoder"].graph)
    files = ScratchWriter(directory)
    write_graphs(graphs, bundle.manifest.graphs, files)
    return files.finish(bundle.manifest)


def replaced(graph: ir.Graph, output: str, make: Callable[[ir.Value], ir.Node]) -> None:
    """An output of a graph computed from what it was."""
    index = next(i for i, value in enumerate(graph.outputs) if value.name == output)
    old = graph.outputs[index]
    node = make(old)
    new = node.outputs[0]
    old.name, new.name, new.type, new.shape = f"{output}.right", output, old.type, old.shape
    graph.append(node)
    graph.outputs[index] = new


def constant(graph: ir.Graph, name: str, value: NDArray[Any]) -> ir.Value:
    tensor = ir.tensor(value, name=name)
    made = ir.Value(name=name, const_value=tensor, shape=ir.Shape(value.shape))
    made.type = ir.TensorType(tensor.dtype)
    graph.register_initializer(made)
    return made


def is_cached(graph: ir.Graph) -> ir.Value:
    """Whether a row is beyond its first position, [batch]."""
    position = next(value for value in graph.inputs if value.name == "position")
    one = constant(graph, "fault.one", np.array(1, np.int64))
    node = ir.node("LessOrEqual", [one, position])
    graph.append(node)
    node.outputs[0].name = "fault.is_cached"
    return node.outputs[0]


def token_seven(graph: ir.Graph) -> None:
    """Token 7 at every cached step, whatever the input."""
    cached, seven = is_cached(graph), constant(graph, "fault.seven", np.array(7, np.int64))
    replaced(graph, "next_token", lambda right: ir.node("Where", [cached, seven, right]))


def logits_of_seven(graph: ir.Graph) -> None:
    """The logits as well, so that what a step says of itself agrees."""
    token_seven(graph)
    cached = next(node.outputs[0] for node in graph if node.outputs[0].name == "fault.is_cached")
    shape = ir.node("Unsqueeze", [cached, constant(graph, "fault.axes", np.array([1, 2]))])
    graph.append(shape)
    shape.outputs[0].name = "fault.wide"
    logits = np.zeros((1, 1, 61), np.float32)
    logits[..., 7] = 30
    sure = constant(graph, "fault.logits", logits)
    replaced(graph, "logits", lambda right: ir.node("Where", [shape.outputs[0], sure, right]))


def doubled_log_probability(graph: ir.Graph) -> None:
    two = constant(graph, "fault.two", np.array(2, np.float32))
    replaced(graph, "next_log_probability", lambda right: ir.node("Mul", [right, two]))


def chosen_minus_one(graph: ir.Graph) -> None:
    """A number that is no token at every cached step, which the graph itself accepts."""
    cached, none = is_cached(graph), constant(graph, "fault.none", np.array(-1, np.int64))
    replaced(graph, "next_token", lambda right: ir.node("Where", [cached, none, right]))


def test_a_bundle_that_chooses_no_token_fails(
    bundles: dict[Precision, Bundle],
    language_model: LanguageModel,
    inputs: ParityInputs,
    tmp_path: Path,
) -> None:
    broken = faulty(bundles["fp32"], tmp_path, chosen_minus_one)
    parity = parity_of(broken, language_model, inputs)
    assert not parity.passed and not parity.tokens.passed


@pytest.mark.parametrize("lengths", [(24, 16, 14), (24, 21, 13), (23, 23, 20)])
def test_rows_of_other_lengths_are_stepped_at_their_own_ends(
    lengths: tuple[int, ...],
    bundles: dict[Precision, Bundle],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where few steps are taken, so that few positions are scored."""
    monkeypatch.setattr(steps, "MOST_STEPS", 12)
    monkeypatch.setattr(steps, "LAST_STEPS", 2)
    generator = np.random.default_rng(0)
    probes = [Probe([], generator.integers(2, 61, n).tolist(), f"of {n}") for n in lengths]
    with Model(bundles["fp32"], open_backend(bundles["fp32"], "onnxruntime", 1)) as model:
        stepped, chosen = steps.compare_steps(model, probes, probes[1:], (), Slack(None, 1e-8), 1)
    assert stepped.passed and chosen.passed, stepped.problem
    assert stepped.compared >= 3 * 12


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_right_bundle_agrees_with_itself(
    precision: Precision,
    bundles: dict[Precision, Bundle],
    language_model: LanguageModel,
    inputs: ParityInputs,
) -> None:
    """Whatever rounding did to its outputs."""
    tokens = parity_of(bundles[precision], language_model, inputs).tokens
    one_pass = tokens.one_pass
    assert tokens.passed and one_pass is not None and one_pass.passed
    assert (one_pass.sequences, one_pass.other_choices, one_pass.worst) == (64, 0, None)
    assert one_pass.largest_difference is not None
    assert one_pass.largest_difference < one_pass.allowed / 2
    assert one_pass.mean_difference < one_pass.allowed / 50
    if precision == "fp32":
        assert (tokens.identical, tokens.expected_identical, tokens.allowed_margin) == (
            64,
            None,
            None,
        )
    else:
        assert tokens.identical < 64
        assert tokens.expected_identical == pytest.approx(tokens.identical, abs=1)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("fault", [token_seven, logits_of_seven])
def test_a_bundle_that_always_emits_one_token_through_its_cache_is_refused(
    precision: Precision,
    fault: Fault,
    bundles: dict[Precision, Bundle],
    language_model: LanguageModel,
    inputs: ParityInputs,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its distributions in one pass are as right as before."""
    parity = parity_of(faulty(bundles[precision], tmp_path, fault), language_model, inputs)
    tokens, one_pass = parity.tokens, parity.tokens.one_pass
    assert parity.distributions is not None and parity.distributions.passed
    assert not parity.passed and not tokens.passed
    assert one_pass is not None and not one_pass.passed and one_pass.worst is not None
    assert one_pass.worst.found_token == 7 and one_pass.gap > 5 * one_pass.allowed
    message = describe_failure(parity)
    assert "\n" not in message
    if precision != "fp32":
        assert re.fullmatch(
            r"parity failed: \d+ of \d+ generated tokens are not what the bundle's own scores "
            r"choose; the worst, random source \d+, at step \d+: token 7 in place of \d+, whose "
            r"score is [\d.]+ higher, allowed [\d.]+",
            message,
        )
    monkeypatch.setenv("COLUMNS", "250")
    print_parity(parity)
    rows = [row for row in capsys.readouterr().out.splitlines() if " identical" in row]
    assert rows and not any("passed" in row for row in rows)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_log_probabilities_are_compared_in_every_precision(
    precision: Precision,
    bundles: dict[Precision, Bundle],
    language_model: LanguageModel,
    inputs: ParityInputs,
    tmp_path: Path,
) -> None:
    bundle = faulty(bundles[precision], tmp_path, doubled_log_probability)
    parity = parity_of(bundle, language_model, inputs)
    one_pass = parity.tokens.one_pass
    assert not parity.tokens.passed
    assert one_pass is not None and one_pass.other_choices == 0
    assert one_pass.mean_difference > one_pass.allowed / 10
    assert describe_failure(parity).startswith(
        "parity failed: log-probabilities of generated tokens differ from the bundle's own in one "
        "pass by "
    )


def test_outputs_that_are_cut_short_are_not_what_the_scores_choose(
    bundle: Model, reference: Transformer
) -> None:
    """An output that stops before the limit without an end token stands for one with it."""
    inputs = random_inputs(reference, 6)
    limit = bundle.manifest.default_max_new_tokens
    expected = oracle_outputs(reference, inputs.sources, limit)
    results = greedy_results(bundle, inputs.sources, limit, None)
    assert bundle_outputs(results) == expected
    found = [*expected[:5], expected[5][:2]]
    one_pass = compare_one_pass(
        bundle, reference, inputs.sources, expected, found, results, limit=limit, slack=1e-3
    )
    assert one_pass.worst is not None and one_pass.other_choices == 1
    assert (one_pass.worst.input, one_pass.worst.step) == (5, 2)
    assert one_pass.worst.preferred_token == expected[5][2]
    assert one_pass.worst.found_token == reference.config.end_token_id
    assert one_pass.tokens == sum(map(len, expected[:5])) + 3


@pytest.mark.parametrize("token", [-1, 19, 10**6])
def test_a_number_that_is_no_token_is_no_choice(
    bundle: Model, reference: Transformer, token: int
) -> None:
    """What follows it cannot be scored."""
    inputs = random_inputs(reference, 3)
    limit = bundle.manifest.default_max_new_tokens
    expected = oracle_outputs(reference, inputs.sources, limit)
    results = greedy_results(bundle, inputs.sources, limit, None)
    found = [*expected[:2], [*expected[2][:1], token, *expected[2][2:]]]
    one_pass = compare_one_pass(
        bundle, reference, inputs.sources, expected, found, results, limit=limit, slack=1e-3
    )
    assert not one_pass.passed and one_pass.other_choices == 1 and one_pass.gap > 1e200
    assert one_pass.worst is not None
    assert (one_pass.worst.step, one_pass.worst.found_token) == (1, token)
    assert one_pass.tokens == sum(map(len, expected[:2])) + 2


def test_the_rules_of_the_checkpoint_are_obeyed(
    make_model: Callable[..., Transformer], make_bundle: Callable[[Transformer], Model]
) -> None:
    """Scores are compared under them: a token that is suppressed, repeated or too early is no
    choice, though its score may be the highest."""
    model = make_model(seed=2, decoder_layers=2, norm_order="pre")
    inputs = random_inputs(model, 24)
    plain = oracle_outputs(model, inputs.sources, 12)
    model.generation = GenerationConfig(
        suppressed_token_ids=(plain[0][0],),
        no_repeat_ngram_size=1,
        min_new_tokens=5,
        forced_first_token_id=4,
        forced_last_token_id=2,
    )
    bundle = make_bundle(model)
    parity = check_parity(bundle, model, inputs, backend="onnxruntime")
    one_pass = parity.tokens.one_pass
    assert parity.tokens.passed and parity.tokens.identical == 24
    assert one_pass is not None and one_pass.passed and one_pass.gap == 0


def test_changed_outputs_and_errors_by_hand(bundle: Model, reference: Transformer) -> None:
    """The bundle is one of the model itself, but for what is done to its scores here."""
    inputs = random_inputs(reference, 3)
    outputs = oracle_outputs(reference, inputs.sources, 12)
    (batch,) = forced_batches(bundle, reference, inputs.sources, outputs)
    meter = ChoiceMeter(reference, 12)
    meter.add(batch)
    choices = meter.result()
    assert (choices.sequences, choices.changed) == (3, 0)
    assert choices.largest_error < 1e-4

    scored = batch.scored.copy()
    order = np.argsort(batch.logits[1, 2])
    best, runner_up = int(order[-1]), int(order[-2])
    scored[1, 2, best] += 0.5
    meter.add(dataclasses.replace(batch, scored=scored))
    choices = meter.result()
    assert (choices.sequences, choices.changed) == (6, 0)
    assert choices.largest_error == pytest.approx(0.5, abs=1e-3)

    margin = float(batch.logits[1, 2, best] - batch.logits[1, 2, runner_up])
    scored[1, 2, best] -= 0.5 + margin + 2
    scored[1, 0, best] -= 1e6  # a token that is neither chosen nor the runner-up says nothing
    if int(batch.logits[1, 0].argmax()) == best:
        scored[1, 0] = batch.logits[1, 0]
    meter.add(dataclasses.replace(batch, scored=scored))
    choices = meter.result()
    assert (choices.sequences, choices.changed) == (9, 1)
    assert choices.largest_error == pytest.approx(margin + 2, abs=1e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_record_is_read_as_it_was_written(
    precision: Precision,
    bundles: dict[Precision, Bundle],
    language_model: LanguageModel,
    inputs: ParityInputs,
) -> None:
    parity = parity_of(bundles[precision], language_model, inputs)
    one_pass = dataclasses.replace(
        parity.tokens.one_pass or pytest.fail("nothing compared"),
        other_choices=1,
        worst=OtherChoice(3, 5, 9, 7, 2.5, "words.txt, line 4"),
    )
    tokens = dataclasses.replace(parity.tokens, one_pass=one_pass, least_identical=0)
    task = TaskParity("BLEU", 30.0, 29.0, True, excess_chance=0.25, undecided=True, more_inputs=70)
    beams = BeamParity(4, 8, 8, 0, 0.0, True, own_difference=0.01, own_allowed=0.5)
    written = dataclasses.replace(parity, tokens=tokens, tasks=(task,), beams=beams)
    problems = Problems()
    data = json.loads(json.dumps(to_plain(written, brief=True)))
    assert from_plain(Parity, data, "parity", problems) == written
    assert problems == []
    changed = dataclasses.replace(written, tokens=TokenParity(2, 2, (), True), tasks=())
    plain = to_plain(changed, brief=True)
    assert set(plain["tokens"]) == {"sequences", "identical", "divergences", "passed"}
