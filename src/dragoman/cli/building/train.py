"""The command `dragoman train`."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
from tokenizers import Tokenizer

from dragoman.errors import DragomanError, refuse_unwritable, shown
from dragoman.metrics import shown_figure
from dragoman.reference_model.pretrained import find_checkpoint
from dragoman.reference_model.recipes import (
    RECIPES,
    PairFiles,
    Recipe,
    check_file_name,
    describe_cleaning,
    find_recipe,
    read_training_file,
)
from dragoman.reference_model.recipes.examples import remark_on_ratio
from dragoman.reference_model.recipes.recipe import AT_THE_LIMIT
from dragoman.reference_model.settings import SETTINGS_SUFFIXES
from dragoman.reference_model.training.history import check_event_library
from dragoman.reference_model.training.options import TrainingStoppedError, with_changes

from ..shared.options import (
    PATH,
    POSITIVE,
    SectionedCommand,
    counted,
    device_option,
    in_section,
    threads_option,
)
from ..shared.terminal import notify, shown_progress

_judging, _going_on = in_section("Validation"), in_section("Interruptions and progress")


@contextmanager
def _printed_once() -> Iterator[None]:
    if os.environ.get("LOCAL_RANK", "0") == "0":
        yield
        return
    try:
        with Path(os.devnull).open("w") as none, redirect_stdout(none), redirect_stderr(none):
            yield
    except DragomanError:
        sys.exit(2)


@click.command(cls=SectionedCommand)
@click.argument("recipe")
@click.option("-o", "--output", type=PATH, help="Directory of the checkpoint [checkpoints/RECIPE].")
@click.option("--data", type=PATH, help="Directory with the data that some recipes need.")
@click.option(
    "--pairs",
    type=PATH,
    multiple=True,
    help="Training data: a file of sources and targets, separated by tabs; or, given twice, a file "
    "of sources and a file of targets [the section corpora of the file].",
)
@click.option(
    "--dev",
    type=PATH,
    multiple=True,
    help="Validation data, in the same form; more references follow after tabs or in more files "
    "[the section dev].",
)
@click.option(
    "--test",
    type=PATH,
    multiple=True,
    help="Held-out data, as for --dev [the section test, or --dev].",
)
@click.option(
    "--from",
    "beginning",
    metavar="CHECKPOINT",
    help="Start from this checkpoint of the same model, a directory or the name of a shipped one.",
)
@counted("--epochs", help="Number of epochs [the recipe's].")
@_judging(
    "--metric",
    "metrics",
    metavar="NAME",
    multiple=True,
    help="bleu, chrf, exact-match, word-error, character-error or rouge-l; repeatable, the most "
    "important one first. bleu:zh, bleu:char, bleu:intl, bleu:ja-mecab and bleu:flores200 choose "
    "its tokenizer [the recipe's].",
)
@_judging(
    "--monitor",
    type=click.Choice(["loss", "metric"]),
    help="What chooses the best epoch and the weights to deliver, on validation data: the loss or "
    "the first metric [the recipe's].",
)
@_going_on(
    "--change",
    "changes",
    metavar="OPTION=VALUE",
    multiple=True,
    help="Change an option of the training from here on, such as learning_rate_scale=0.5; "
    "repeatable. It stays changed when the training resumes.",
)
@_going_on("--finish", is_flag=True, help="Train no further: deliver what was trained so far.")
@_going_on("--save-every", type=POSITIVE, metavar="STEPS", help="Steps between saves.")
@_judging(
    "--validate-every",
    type=POSITIVE,
    metavar="STEPS",
    help="Also compute validation figures within epochs.",
)
@_going_on("--log-dir", type=PATH, help="Directory of events for TensorBoard.")
@device_option
@threads_option
@_printed_once()
def train(
    recipe: str,
    output: Path | None,
    data: Path | None,
    pairs: tuple[Path, ...],
    dev: tuple[Path, ...],
    test: tuple[Path, ...],
    beginning: str | None,
    metrics: tuple[str, ...],
    changes: tuple[str, ...],
    finish: bool,
    log_dir: Path | None,
    device: str | None,
    threads: int | None,
    **options: Any,
) -> None:
    """Train a model and evaluate it on held-out data.

    RECIPE is one of the list below, or a JSON or YAML file that describes a translation model, its
    vocabulary and its training. The same command resumes an interrupted training, whose state is
    kept in OUTPUT/training. Ctrl-C and SIGTERM stop a training after the present step. A GPU is
    used if there is one, and several by torchrun.

    \b
    g2p-en          English words to phonemes: 80 minutes on one core
    verses-en       English verses, continued: half an hour on one core
    bible-en-es     English verses to Spanish ones: 80 minutes on one core
    multi30k-en-de  English captions to German ones: 90 minutes on one core

    \b
    dragoman train g2p-en -o checkpoints/g2p-en
    dragoman train en-de.json --pairs train.tsv --dev dev.tsv -o checkpoints/en-de
    torchrun --nproc-per-node 4 -m dragoman train en-de.json --pairs train.tsv --dev dev.tsv
    """
    is_file = recipe.lower().endswith(SETTINGS_SUFFIXES)
    directory = output or Path("checkpoints") / (Path(recipe).stem if is_file else recipe)
    chosen = _recipe(recipe, PairFiles(pairs, dev, test), directory / "training")
    if directory.exists() and not directory.is_dir():
        raise DragomanError(f"{directory}: expected a directory to train in, found a file")
    refuse_unwritable(directory)
    if data is not None and not data.is_dir():
        raise DragomanError(f"--data: expected a folder, found none at {data}")
    if (directory / "model.safetensors").exists() and not (directory / "training").exists():
        raise DragomanError(
            f"{directory}: expected a new directory, or one with the state of a training, found a "
            "checkpoint"
        )
    if finish:
        from dragoman.reference_model.training.state import has_training

        has_training(directory / "training", finish=True)  # raises before the data are read
    start = None if beginning is None else find_checkpoint(beginning)
    if start is not None and not (start / "config.json").is_file():
        raise DragomanError(
            f"--from: expected a checkpoint of Dragoman's, found no config.json in {start}"
        )
    given = {name: value for name, value in options.items() if value is not None}
    epochs = options["epochs"]
    if epochs is not None and epochs < chosen.options.cool_down_epochs:
        of_recipe = chosen.options.cool_down_epochs
        notify(f"--epochs {epochs}: the cool-down has {epochs} epochs, too, instead of {of_recipe}")
        given["cool_down_epochs"] = epochs
    chosen = dataclasses.replace(chosen, options=dataclasses.replace(chosen.options, **given))
    if metrics:
        chosen = chosen.scored_by(metrics)
    changed = _changes(changes)
    with_changes(chosen.options, changed)  # raises before anything is read
    if log_dir is not None:
        check_event_library()
    if device is not None:
        from dragoman.reference_model.training.processes import training_device

        training_device(device)  # raises before the data are read
    with shown_progress() as progress:
        progress.stage("reading the data")
        loaded = chosen.load_data(data)
    remark = remark_on_ratio(len(loaded.train), loaded.dropped)
    if remark:
        notify(f"Warning: {remark}")
    if loaded.dropped or is_file:
        click.echo(describe_cleaning(len(loaded.train), loaded.dropped), err=True)
    import torch

    from dragoman.reference_model.recipes import read_initial_model, run_recipe
    from dragoman.reference_model.training.processes import process_group

    if threads is not None:
        torch.set_num_threads(threads)
    initial = None
    if start is not None:
        initial = read_initial_model(start, chosen.config, open_vocabulary=chosen.open_vocabulary)
    try:
        with process_group():
            result = run_recipe(
                chosen,
                loaded,
                directory,
                directory / "training",
                initial=initial,
                changes=changed,
                finish=finish,
                log_directory=log_dir,
                device=device,
            )
    except TrainingStoppedError as error:
        notify(f"Stopped after step {error.step}. To go on: {same_command()}")
        sys.exit(128 + error.signal)
    signatures = list(result.signatures.values())
    for number, (name, value) in enumerate(result.figures.items()):
        shown_value = shown_figure(name, value) if signatures else chosen.shown(value)
        signature = f" ({signatures[number]})" if signatures else ""
        click.echo(f"held-out {name}: {shown_value}{signature}")
    if result.at_the_limit:
        reached = "output reached the limit" if result.at_the_limit == 1 else AT_THE_LIMIT
        click.echo(f"{result.at_the_limit:,} {reached} of the model's positions")
    click.echo()
    notify(f"Next: dragoman build {directory} -o bundles/{directory.resolve().name}", err=False)


def same_command() -> str:
    """Return the command that was called, without options that hold for one call only."""
    words = iter(sys.argv[1:])
    kept = []
    for word in words:
        if word == "--change":
            next(words, None)
        elif not word.startswith("--change="):
            kept.append(word)
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    several = [] if processes == "1" else ["torchrun", "--nproc-per-node", processes, "-m"]
    return shlex.join([*several, "dragoman", *kept])


def _changes(texts: tuple[str, ...]) -> dict[str, object]:
    changes = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise DragomanError(f"--change: expected OPTION=VALUE, found {shown(text)}")
        try:
            changes[name] = json.loads(value)
        except ValueError:
            changes[name] = value
    return changes


def _read_vocabulary(path: Path) -> Tokenizer:
    from dragoman.export.tokenizers import read_trainable  # takes long to import

    return read_trainable(path)


def _recipe(name: str, pairs: PairFiles, directory: Path) -> Recipe:
    if not name.lower().endswith(SETTINGS_SUFFIXES):
        given = pairs != PairFiles()
        if name not in RECIPES and (given or Path(name).exists()):
            raise DragomanError(
                f"expected a recipe, or a file whose name ends in {', '.join(SETTINGS_SUFFIXES)}, "
                f"found {shown(name)}"
            )
        if given:
            raise DragomanError(
                "--pairs, --dev and --test are for a training that a file describes, found the "
                f"recipe {shown(name)}, which has data of its own"
            )
        return find_recipe(name)
    chosen = read_training_file(Path(name), pairs, directory, _read_vocabulary)
    check_file_name(Path(name))
    return chosen
