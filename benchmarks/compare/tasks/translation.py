"""Measures BLEU and chrF of a trained translation model for each precision and strategy.

A bundle is built for each precision, calibrated on the validation sources or, if missing, on those
of the first test set. sacrebleu scores the outputs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.errors import DragomanError

from ...models.bundles import bundle_of_checkpoint
from .. import options
from ..record import Record, Table, distinct, table_of
from ..task import Options, Run, Task
from .decoding import decoding, texts_of

CALIBRATION_SOURCES, PRECISIONS = 200, ("fp32", "int8", "int4")

PUBLISHED = {"test_2016_flickr": 41.02, "test_2017_flickr": 33.36, "test_2017_mscoco": 29.88}
"""BLEU of lower-cased tokens of the text-only Transformer of the same size, 5 beams, the last ten
checkpoints averaged (Wu et al. 2021, arXiv 2105.14462)."""


class HeldOut(NamedTuple):
    """A held-out test set."""

    name: str
    sources: Sequence[str]
    references: Sequence[str]
    language: str
    """Language of the targets."""
    tokenized: Sequence[str] = ()
    """References as lower-cased, space-separated tokens, if the model was trained on tokens; empty:
    it was trained on texts."""
    published: float | None = None
    """Published BLEU on tokens."""


def held_out_sets(recipe: str, checkpoint: Path, data: Path | None) -> list[HeldOut]:
    """Return the test sets of a recipe's model; that of Multi30k needs the folder of its data."""
    from dragoman.reference_model.recipes import multi30k_en_de, read_examples
    from dragoman.reference_model.recipes.recipe import HELD_OUT_FILE

    if recipe != multi30k_en_de.RECIPE.name:
        examples = read_examples(checkpoint / HELD_OUT_FILE)
        sources = [example.source for example in examples]
        references = [example.references[0] for example in examples]
        return [HeldOut("held out", sources, references, recipe.rpartition("-")[2])]
    if data is None:
        raise DragomanError(f"{recipe}: its data are needed: --data FOLDER")
    language, tests = multi30k_en_de.TARGET, []
    for name in multi30k_en_de.TESTS:
        examples = multi30k_en_de.read_set(data, name)
        sources = [example.source for example in examples]
        tokenized = [example.references[0] for example in examples]
        texts = multi30k_en_de.read_lines_of(data, f"{name}.{language}")
        tests.append(HeldOut(name, sources, texts, language, tokenized, PUBLISHED[name]))
    return tests


def scores(outputs: Sequence[str], test: HeldOut) -> dict[str, Any]:
    """Score the output for each source.

    Returns:
        `bleu` and `chrf` of texts, from 0 to 100, for a model of lower-cased tokens of the
        detokenized outputs, ignoring case; `bleu_of_tokens`, as in papers, None if outputs are
        texts; and the signatures of sacrebleu
    """
    from dragoman.metrics.sacrebleu_metrics import SacreBleu

    texts, of_tokens, lowercase = list(outputs), None, bool(test.tokenized)
    if test.tokenized:
        plain = SacreBleu("BLEU", tokenize="none")
        of_tokens = plain.figure(texts, [[text] for text in test.tokenized])
        try:
            from sacremoses import MosesDetokenizer
        except ImportError as error:
            raise DragomanError(
                "joining Moses's tokens needs sacremoses: pip install it"
            ) from error
        detokenizer = MosesDetokenizer(lang=test.language)
        texts = [detokenizer.detokenize(text.split()) for text in texts]
    references = [[text] for text in test.references]
    bleu, chrf = SacreBleu("BLEU", lowercase=lowercase), SacreBleu("chrF", lowercase=lowercase)
    return {
        "bleu": bleu.figure(texts, references),
        "chrf": chrf.figure(texts, references),
        "bleu_signature": bleu.signature(),
        "chrf_signature": chrf.signature(),
        "bleu_of_tokens": of_tokens,
    }


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Translate and score all test sets, with every precision and strategy."""
    from dragoman.export.locating import locate_checkpoint
    from dragoman.reference_model.recipes import find_recipe, multi30k_en_de
    from dragoman.reference_model.recipes.recipe import RECIPE_FILE
    from dragoman.runtime import load

    directory = locate_checkpoint(given.checkpoint).directory
    path = directory / RECIPE_FILE
    if not path.is_file():
        raise DragomanError(f"{directory}: expected a checkpoint of a recipe, found no {path.name}")
    training: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    history = (directory / "history.jsonl").read_text(encoding="utf-8").splitlines()
    training["history"] = [json.loads(line) for line in history]
    recipe = find_recipe(str(training["recipe"])).name
    tests = held_out_sets(recipe, directory, given.data)
    if recipe == multi30k_en_de.RECIPE.name:
        sources = [example.source for example in multi30k_en_de.read_set(given.data, "val")]
    else:
        sources = list(tests[0].sources)
    step = max(1, len(sources) // CALIBRATION_SOURCES)
    calibration = sources[::step][:CALIBRATION_SOURCES]
    figures = []
    for precision in given.precisions:
        run.progress(f"building {precision}")
        kind = {"target": "cpu", "precision": precision, "calibration": calibration}
        bundle = bundle_of_checkpoint(directory, run.directory / precision, **kind)
        with load(bundle, threads=given.threads) as model:
            for test, beams in product(tests, given.beams):
                run.progress(f"{precision}, {test.name}, {decoding(beams)}")
                results = model.generate(list(test.sources), num_beams=beams)
                outputs = texts_of(results, test.name)
                row = {"test": test.name, "precision": precision, "beams": beams}
                row |= {"sentences": len(outputs), "scores": scores(outputs, test)}
                figures.append({**row, "published": test.published})
    return {"model": recipe, "figures": figures, "training": training}


COLUMNS = (
    ("set", "{test}"),
    ("precision", "{precision}"),
    ("decoding", "{decoding}"),
    ("BLEU of tokens", "{scores[bleu_of_tokens]:.2f}"),
    ("published", "{published:.2f}"),
    ("BLEU", "{scores[bleu]:.2f}"),
    ("chrF", "{scores[chrf]:.2f}"),
)


def tables(record: Record) -> Iterator[Table]:
    """Yield a row for each test set, precision and strategy."""
    rows = [{**figure, "decoding": decoding(figure["beams"])} for figure in record["figures"]]
    yield table_of(rows, COLUMNS, title=f"quality of {record['model']}", left=3)


def notes(record: Record) -> Iterator[str]:
    """Yield the signatures of sacrebleu."""
    yield from distinct(
        f"{name} {figure['scores'][key]}"
        for figure in record["figures"]
        for name, key in (("BLEU", "bleu_signature"), ("chrF", "chrf_signature"))
    )


def _copy_curve(record: Record, stem: Path, options: Mapping[str, Any]) -> None:
    from dragoman.export.locating import locate_checkpoint

    directory = locate_checkpoint(options["checkpoint"]).directory
    shutil.copyfile(directory / "curve.png", stem.with_name(f"{stem.name}.png"))


TRANSLATION = Task(
    name="translation",
    help="Measure BLEU and chrF of CHECKPOINT, trained by one of Dragoman's recipes, on held-out "
    "texts.",
    options=(
        options.argument("checkpoint"),
        options.option("--data", "The folder of Multi30k.", kind=Path),
        options.option(
            *("--precision", "Precision of the bundle;", PRECISIONS, [*PRECISIONS]),
            parameter="precisions",
        ),
        options.option("--beams", "1 is greedy decoding;", (1, 5)),
        options.option("--threads", "Threads of the runtime.", kind=int),
    ),
    measure=measure,
    rows="figures",
    file=lambda record, options: f"translation-{record['model']}",
    tables=tables,
    notes=notes,
    copy=_copy_curve,
)
