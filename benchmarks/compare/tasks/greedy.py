"""Compares the latency of greedy decoding, beam search, and decoder-only models.

Every contender decodes a fixed number of new tokens; the time includes the encoder. Each round has
a turn of every contender with every number of threads. Figures are medians over the rounds, with
their ranges. All tools get the same checkpoint, with seeded random weights in the shape of a
published model, which never selects the end token. Dragoman's int8 and int4 are calibrated on other
sources of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dragoman.errors import DragomanError

from ...models.bundles import optimized_bundle
from ...models.shapes import (
    LANGUAGE_MODELS,
    SHAPES,
    check_lengths,
    describe,
    describe_language_model,
)
from ...processes import HERE, call_in
from ..record import Record
from ..task import BEFORE, ONLY, OPENVINO, ROUNDS, SHAPE, THREADS, VOCAB_SIZE, Option, Run, Task
from . import decoding_report as report
from .decoding import Workload, measure_decoding
from .text_contenders import BUNDLES, BundleKind, language_models, translators

TURN_SECONDS = 0.5
"""A batch is decoded again until that has taken so long."""


def measure(
    run: Run,
    *,
    shape: str,
    batch_sizes: tuple[int, ...],
    threads: tuple[int, ...],
    rounds: int,
    vocab_size: int | None,
    source_length: int,
    longest_source: int | None,
    new_tokens: int,
    quality: bool,
    beams: int = 1,
    device: str = "cpu",
) -> dict[str, Any]:
    """Measure all contenders at all batch sizes."""
    from ...models.random_checkpoint import write_random_text_model
    from .floor import best_pace, floors, measure_pace

    check_lengths(shape, source_length, longest_source, new_tokens)
    vocab_size = vocab_size or SHAPES[shape].vocab_size
    workload = Workload(
        longest_source=longest_source,
        batch_sizes=batch_sizes,
        source_length=source_length,
        new_tokens=new_tokens,
        tokens=(1, vocab_size - 1),  # without the end token (first) and padding (last)
        threads=threads or ((1, 2) if device == "cpu" else (2,)),
        rounds=rounds,
        num_beams=beams,
        turn_seconds=TURN_SECONDS,
    )
    if device == "cpu":
        contenders = translators(
            beams,
            calibration=workload.calibration(),
            openvino_in=run.openvino,
            before=run.before,
        )
    else:
        from .gpu_contenders import engine_sizes, gpu_contenders

        contenders = gpu_contenders(engine_sizes(workload))
    run.selected(contender.name for contender in contenders)  # fail early
    checkpoint = run.directory / "checkpoint"
    write_random_text_model(shape, checkpoint, vocab_size=vocab_size)
    on_cpu = workload.threads if device == "cpu" else ()
    before_rounds = [measure_pace(n) for n in on_cpu]
    figures = measure_decoding(run, contenders, workload, checkpoint)
    measured = {m.contender for m in figures["measurements"]}
    after_rounds = [measure_pace(n) for n in on_cpu]
    paces = [best_pace(moments) for moments in zip(before_rounds, after_rounds, strict=True)]
    bundles = [bundle for bundle in BUNDLES if bundle.contender in measured]
    precisions = {bundle.contender: bundle.precision for bundle in bundles}
    return record_of(
        describe(shape, vocab_size),
        workload,
        figures,
        word_error=word_errors(bundles, max(workload.threads)) if bundles and quality else {},
        paces=paces,
        floors=floors(paces, precisions, SHAPES[shape], workload, vocab_size),
    )


def measure_language_model(
    run: Run,
    *,
    shape: str,
    batch_sizes: tuple[int, ...],
    prompt_length: int,
    new_tokens: int,
    threads: tuple[int, ...],
    rounds: int,
) -> dict[str, Any]:
    """Measure contenders that continue prompts.

    The time of a call includes prefill.
    """
    from ...models.random_checkpoint import write_random_language_model

    workload = Workload(
        batch_sizes=batch_sizes,
        source_length=prompt_length,
        new_tokens=new_tokens,
        tokens=(0, LANGUAGE_MODELS[shape].vocab_size - 1),  # without the end token (last)
        threads=threads,
        rounds=rounds,
    )
    contenders = language_models(openvino_in=run.openvino, before=run.before)
    run.selected(contender.name for contender in contenders)  # fail early
    checkpoint = run.directory / "checkpoint"
    write_random_language_model(shape, checkpoint)
    figures = measure_decoding(run, contenders, workload, checkpoint)
    return record_of(describe_language_model(shape), workload, figures)


def record_of(
    shape: str,
    workload: Workload,
    figures: Mapping[str, Any],
    *,
    word_error: Mapping[str, float] | None = None,
    paces: Iterable[Any] = (),
    floors: Iterable[Any] = (),
) -> dict[str, Any]:
    """Return the figures in the order of a record, without empty and default ones.

    Args:
        shape: description of the model
        figures: see `measure_decoding`
        word_error: word error of the trained model g2p-en by contender
        paces: speeds of the processor in the same run, by number of threads
        floors: floors of Dragoman's precisions
    """
    optional = {
        "longest_source": workload.longest_source,
        "num_beams": workload.num_beams if workload.num_beams > 1 else None,
        "costs": figures["costs"],
        "paces": list(paces),
        "floors": list(floors),
    }
    return {
        "shape": shape,
        "source_length": workload.source_length,
        "new_tokens": workload.new_tokens,
        "threads": workload.threads,
        "rounds": workload.rounds,
        "measurements": figures["measurements"],
        "footprints": figures["footprints"],
        "word_error": dict(word_error or {}),
        "failures": figures["failures"],
        **{name: value for name, value in optional.items() if value},
    }


def word_errors(bundles: Iterable[BundleKind], threads: int) -> dict[str, float]:
    """Return the word error of the shipped model on held-out words, by contender.

    Raises:
        DragomanError: a word was rejected.
    """
    return call_in(HERE, _word_errors, list(bundles), threads)


def _word_errors(bundles: list[BundleKind], threads: int) -> dict[str, float]:
    from dragoman.reference_model.pretrained import find_checkpoint
    from dragoman.reference_model.recipes import find_recipe, read_examples
    from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE
    from dragoman.runtime import load

    from ...models.shipped import MODEL, exported

    checkpoint, recipe = find_checkpoint(MODEL), find_recipe(MODEL)
    assert recipe.score is not None
    examples = read_examples(checkpoint / HELD_OUT_FILE)
    errors: dict[str, float] = {}
    with TemporaryDirectory() as workspace:
        neutral = exported(Path(workspace) / "neutral")
        for name, target, precision in bundles:
            directory = Path(workspace) / f"{target}-{precision}"
            bundle = optimized_bundle(neutral, directory, target=target, precision=precision)
            results = load(bundle, threads=threads).generate([e.source for e in examples])
            rejected = [result.error for result in results if result.error]
            if rejected:
                raise DragomanError(
                    f"{MODEL}: expected a result for every word, found {len(rejected)} rejected, "
                    f"the first with: {rejected[0]}"
                )
            texts = [result.text or "" for result in results]
            errors[name] = recipe.score(texts, examples)[recipe.metric]
    return errors


def _device(options: Mapping[str, Any]) -> str | None:
    """Describe the GPU, if it is measured."""
    if options.get("device") != "cuda":
        return None
    from .gpu_contenders import describe_gpu

    return describe_gpu()


def _file(record: Record, options: Mapping[str, Any]) -> str:
    """Return the name of a record, such as cpu-base-4-beams-1-2-threads."""
    if options.get("device") == "cuda":
        return f"gpu-{options['shape']}"
    beams = f"-{record['num_beams']}-beams" if "num_beams" in record else ""
    return f"cpu-{options['shape']}{beams}-{'-'.join(map(str, record['threads']))}-threads"


def batch_sizes(*default: int, what: str = "Sources decoded as one batch;") -> Option:
    """Return the option of batch sizes."""
    return Option("--batch-size", what, int, default, parameter="batch_sizes")


def new_tokens(what: str = "source") -> Option:
    """Return the option of the number of new tokens."""
    text = f"Tokens generated for every {what}."
    return Option("--new-tokens", text, int, 64, most=1023)


def quality(*, default: bool) -> Option:
    """Return the option of measuring the word error."""
    return Option(
        "--quality/--no-quality",
        "Also measure the word error of the trained model g2p-en in Dragoman's precisions.",
        bool,
        default,
    )


ROUNDS_OF_LATENCY = replace(ROUNDS, default=7)

LENGTHS = (
    Option("--source-length", "Tokens of every source.", int, 32, most=1024),
    Option("--longest-source", "Draw lengths from --source-length to this one.", int, most=1024),
    new_tokens(),
)

_task = partial(
    Task,
    measure=measure,
    rows="measurements",
    file=_file,
    device=_device,
    tables=report.tables,
    notes=report.notes,
    documentation=report.documentation,
    picture=report.picture,
    picture_type="png",
)

GREEDY = _task(
    name="greedy",
    help="Compare the latency of greedy decoding, on random weights in published shapes.",
    options=(
        SHAPE,
        batch_sizes(1, 8, 32),
        replace(
            THREADS,
            default=(),
            help="Threads of every contender, each of which takes part with each number [default: "
            "1 and 2, on a GPU 2];",
        ),
        ROUNDS_OF_LATENCY,
        VOCAB_SIZE,
        *LENGTHS,
        Option(
            "--device",
            "cuda: engines and other tools on an NVIDIA GPU.",
            choices=("cpu", "cuda"),
            default="cpu",
        ),
        ONLY,
        OPENVINO,
        BEFORE,
        quality(default=True),
    ),
)

BEAMS = _task(
    name="beams",
    help="Compare the latency of beam search, and with greedy decoding of as many rows.",
    options=(
        SHAPE,
        batch_sizes(1, 8),
        Option("--beams", "Beams of every source.", int, 4, least=2),
        THREADS,
        ROUNDS_OF_LATENCY,
        VOCAB_SIZE,
        *LENGTHS,
        ONLY,
        OPENVINO,
        BEFORE,
        quality(default=False),
    ),
)

LANGUAGE_MODEL = _task(
    name="language-model",
    help="Compare the latency of continuing prompts, with a model of GPT-2's shape.",
    options=(
        Option("--shape", "Shape of the model.", choices=tuple(LANGUAGE_MODELS), default="gpt2"),
        batch_sizes(1, 8, what="Prompts continued as one batch;"),
        Option("--prompt-length", "Tokens of every prompt.", int, 32),
        new_tokens("prompt"),
        THREADS,
        ROUNDS_OF_LATENCY,
        ONLY,
        OPENVINO,
        BEFORE,
    ),
    measure=measure_language_model,
    file=lambda record, options: (
        f"language-model-{options['shape']}-{'-'.join(map(str, record['threads']))}-threads"
    ),
)
