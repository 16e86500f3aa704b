"""Compares the latency of greedy decoding, beam search, and decoder-only models.

Every contender decodes a fixed number of new tokens; the time includes the encoder. Each round has
a turn of every contender with every number of threads. Figures are medians over the rounds, with
their ranges. All tools get the same checkpoint, with seeded random weights in the shape of a
published model, which never selects the end token. Dragoman's int8 and int4 are calibrated on other
sources of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from ...models import shapes
from ...models.bundles import optimized_bundle
from ...models.shapes import LANGUAGE_MODELS, SHAPES
from .. import options
from ..contenders.text import BUNDLES, BundleKind, Workload, language_models, translators
from ..contenders.variants import with_recurrent, with_shortlists
from ..record import Record
from ..task import Options, Run, Task
from . import decoding
from .decoding import TURN_SECONDS, measure_decoding, texts_of


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Measure all contenders at all batch sizes."""
    from ...models.random_checkpoint import write_random_text_model
    from .floor import best_pace, floors, measure_pace

    shape, device, beams = given.shape, getattr(given, "device", "cpu"), getattr(given, "beams", 1)
    shapes.check_lengths(shape, given.source_length, given.longest_source, given.new_tokens)
    vocab_size = given.vocab_size or SHAPES[shape].vocab_size
    tokens = (1, vocab_size - 1)  # without the end token (first) and padding (last)
    threads = given.threads or ((1, 2) if device == "cpu" else (2,))
    sizes = given.batch_sizes, given.source_length, given.new_tokens
    longest, turn = given.longest_source, TURN_SECONDS
    workload = Workload(*sizes, tokens, threads, given.rounds, longest, beams, turn)
    gpu = None
    if device == "cpu":
        interpreters: dict[str, Any] = {"openvino_in": run.openvino, "before": run.before}
        contenders = translators(beams, calibration=workload.calibration(), **interpreters)
        if given.shortlist:
            contenders = with_shortlists(contenders)
        if shape == "student":
            contenders = with_recurrent(contenders, shortlist=given.shortlist)
    else:
        from ..contenders.gpu import describe_gpu, engine_sizes, gpu_contenders

        contenders, gpu = gpu_contenders(engine_sizes(workload)), describe_gpu()
    contenders = run.chosen(contenders)  # fail early
    write_random_text_model(shape, run.checkpoint, vocab_size=vocab_size)
    on_cpu = workload.threads if device == "cpu" else ()
    before_rounds = [measure_pace(n) for n in on_cpu]
    figures = measure_decoding(run, contenders, workload, run.checkpoint)
    after_rounds = [measure_pace(n) for n in on_cpu]
    paces = [best_pace(moments) for moments in zip(before_rounds, after_rounds, strict=True)]
    measured = {m["contender"] for m in figures["measurements"]}
    bundles = [bundle for bundle in BUNDLES if bundle.contender in measured]
    precisions = {bundle.contender: bundle.precision for bundle in bundles}
    quality = bundles and given.quality
    return record_of(
        shapes.describe(shape, vocab_size),
        workload,
        figures,
        word_error=word_errors(bundles, max(workload.threads)) if quality else {},
        paces=paces,
        floors=floors(paces, precisions, SHAPES[shape], workload, vocab_size),
        gpu=gpu,
    )


def measure_language_model(run: Run, given: Options) -> dict[str, Any]:
    """Measure contenders that continue prompts; the time of a call includes prefill."""
    from ...models.random_checkpoint import write_random_language_model

    tokens = (0, LANGUAGE_MODELS[given.shape]["vocab_size"] - 1)  # without the end token (last)
    sizes = given.batch_sizes, given.prompt_length, given.new_tokens
    workload = Workload(*sizes, tokens, given.threads, given.rounds)
    contenders = run.chosen(language_models(openvino_in=run.openvino, before=run.before))
    write_random_language_model(given.shape, run.checkpoint)
    figures = measure_decoding(run, contenders, workload, run.checkpoint)
    return record_of(shapes.describe_language_model(given.shape), workload, figures)


def record_of(
    shape: str, workload: Workload, figures: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Return the figures of `measure_decoding` and more, if not empty, in the order of a record."""
    beams = workload.num_beams if workload.num_beams > 1 else None
    optional = {"longest_source": workload.longest_source, "num_beams": beams}
    optional |= {"costs": figures["costs"]}
    return {
        "shape": shape,
        "source_length": workload.source_length,
        "new_tokens": workload.new_tokens,
        "threads": workload.threads,
        "rounds": workload.rounds,
        "measurements": figures["measurements"],
        "footprints": figures["footprints"],
        "word_error": more.pop("word_error", {}),
        "failures": figures["failures"],
        **{name: value for name, value in (optional | more).items() if value},
    }


def word_errors(bundles: Iterable[BundleKind], threads: int) -> dict[str, float]:
    """Return the word error of the shipped model on held-out words, by contender."""
    from dragoman.reference_model.pretrained import find_checkpoint
    from dragoman.reference_model.recipes import find_recipe, read_examples
    from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE
    from dragoman.runtime import load

    from ...models.bundles import MODEL, exported

    recipe, examples = find_recipe(MODEL), read_examples(find_checkpoint(MODEL) / HELD_OUT_FILE)
    assert recipe.score is not None
    errors: dict[str, float] = {}
    with TemporaryDirectory() as workspace:
        neutral = exported(Path(workspace) / "neutral")
        for name, target, precision in bundles:
            kind = {"target": target, "precision": precision}
            bundle = optimized_bundle(neutral, Path(workspace) / precision, **kind)
            results = load(bundle, threads=threads).generate([e.source for e in examples])
            errors[name] = recipe.score(texts_of(results, MODEL), examples)[recipe.metric]
    return errors


def _file(record: Record, options: Mapping[str, Any]) -> str:
    """Return the name of a record, such as cpu-base-4-beams-1-2-threads."""
    if options.get("device") == "cuda":
        return f"gpu-{options['shape']}"
    beams = f"-{record['num_beams']}-beams" if "num_beams" in record else ""
    listed = "-shortlist" if options.get("shortlist") else ""
    return f"cpu-{options['shape']}{beams}{listed}-{'-'.join(map(str, record['threads']))}-threads"


QUALITY = "Also measure the word error of the trained model g2p-en in Dragoman's precisions."
ROUNDS = options.rounds(7)
WAYS = (options.ONLY, options.OPENVINO, options.BEFORE)
LENGTH = click.IntRange(1, 1024)
LONGEST = "Draw lengths from --source-length to this one."
LENGTHS = (
    options.option("--source-length", "Tokens of every source.", 32, LENGTH),
    options.option("--longest-source", LONGEST, kind=LENGTH),
    options.new_tokens(),
)
DEVICE = "cuda: engines and other tools on an NVIDIA GPU."

_task = partial(
    Task,
    measure=measure,
    rows="measurements",
    file=_file,
    tables=decoding.tables,
    notes=decoding.notes,
    documentation=decoding.documentation,
    picture=decoding.picture,
    picture_type="png",
)

GREEDY = _task(
    name="greedy",
    help="Compare the latency of greedy decoding, on random weights in published shapes.",
    options=(
        options.SHAPE,
        options.batch_sizes(1, 8, 32),
        options.each_with_threads(note=" [default: 1 and 2, on a GPU 2]"),
        ROUNDS,
        options.VOCAB_SIZE,
        *LENGTHS,
        options.option("--device", DEVICE, "cpu", ["cpu", "cuda"]),
        *WAYS,
        options.SHORTLIST,
        options.option("--quality/--no-quality", QUALITY, True, is_flag=True),
    ),
)

BEAMS = _task(
    name="beams",
    help="Compare the latency of beam search, and with greedy decoding of as many rows.",
    options=(
        options.SHAPE,
        options.batch_sizes(1, 8),
        options.option("--beams", "Beams of every source.", 4, click.IntRange(2)),
        options.each_with_threads(1, 2),
        ROUNDS,
        options.VOCAB_SIZE,
        *LENGTHS,
        *WAYS,
        options.SHORTLIST,
        options.option("--quality/--no-quality", QUALITY, False, is_flag=True),
    ),
)

LANGUAGE_MODEL = _task(
    name="language-model",
    help="Compare the latency of continuing prompts, with a model of GPT-2's shape.",
    options=(
        options.option("--shape", "Shape of the model.", "gpt2", [*LANGUAGE_MODELS]),
        options.batch_sizes(1, 8, what="Prompts continued as one batch;"),
        options.option("--prompt-length", "Tokens of every prompt.", 32),
        options.new_tokens("prompt"),
        options.each_with_threads(1, 2),
        ROUNDS,
        *WAYS,
    ),
    measure=measure_language_model,
    file=lambda record, options: (
        f"language-model-{options['shape']}-{'-'.join(map(str, record['threads']))}-threads"
    ),
)
