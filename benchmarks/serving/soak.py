"""A server under load for a long time, with clients that misbehave: nothing may go wrong.

    python -m dragoman.benchmarks.serving.soak bundles/g2p-en --minutes 30

Requests arrive at a share of what the server can do. Some clients go away in the middle, some send
what is no request, and from time to time so many come at once that some must be refused. Every
answer, streamed or not, is compared with the library's for the same source and options; afterwards
no slot may be in use, and the server must hold as much memory as after the first fifth of the time.
The exit status is 1 unless all of that is so.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..circumstances import circumstances
from ..harness import HERE, ContenderError, call_in
from .clients import Came, Clients, library_answers
from .measuring import SEED
from .served import running

SHARE = 0.8
"""Of the rate at which the server is saturated."""
WAITING = 128
RATES = tuple(50.0 * 2**n for n in range(8))
"""Requests a second that are tried, until a server cannot answer all."""
ATTEMPT_SECONDS = 6.0
SATURATED = 0.1
"""Share of requests that a server refuses that can do no more."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--minutes", type=click.FloatRange(min=0.2), default=30.0, show_default=True, help="Of load."
)
@click.option("--output", type=click.Path(path_type=Path), help="Folder for the figures, as JSON.")
def main(bundle: Path, minutes: float, output: Path | None) -> None:
    """Let clients use and misuse a server of BUNDLE, of texts, for a long time."""
    console = Console(stderr=True)
    try:
        sources = _sources(bundle)
        expected = call_in(HERE, library_answers, bundle, sources)
        command = [sys.executable, "-m", "dragoman", "serve", str(bundle), "--port", "0"]
        command += ["--max-waiting", str(WAITING)]
        with running(command) as (url, pid), console.status("") as status:
            status.update("finding the rate at which it is saturated")
            trial = Clients(url, pid, sources, expected)
            rate = SHARE * saturation(lambda r: asyncio.run(trial.flood(r, ATTEMPT_SECONDS)))
            status.update(f"{rate:.0f} requests a second for {minutes:g} minutes")
            clients = Clients(url, pid, sources, expected)
            outcome = asyncio.run(clients.soak(rate, minutes * 60))
    except (DragomanError, ContenderError) as error:
        raise click.ClickException(str(error)) from error
    console.print_json(json.dumps(asdict(outcome)))
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        where = circumstances("dragoman.benchmarks.serving.soak", 0.0)
        record = {"bundle": bundle.resolve().name, **asdict(outcome), **asdict(where)}
        (output / "serving-soak.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    if outcome.problems:
        raise click.ClickException("; ".join(outcome.problems))
    console.print(
        f"{outcome.answered} answers as the library's, {outcome.streamed} of them streamed; "
        f"{outcome.refused} refused"
    )


def _sources(bundle: Path) -> list[str]:
    """Words of letters, of lengths 1 to 20, that any bundle of texts reads somehow."""
    generator = random.Random(SEED)
    letters = "abcdefghijklmnopqrstuvwxyz"
    lengths = [1 + n % 20 for n in range(60)]
    return ["".join(generator.choices(letters, k=length)) for length in lengths]


def saturation(flood: Callable[[float], Sequence[Came]]) -> float:
    """Requests a second that are answered while more are sent than can be: in the middle half of
    the time, when the queue is full and requests still come.

    Args:
        flood: sends requests at a rate, for `ATTEMPT_SECONDS`

    Raises:
        ContenderError: all requests are answered at every rate.
    """
    begin, end = ATTEMPT_SECONDS / 4, ATTEMPT_SECONDS * 3 / 4
    for rate in RATES:
        statuses = [came.status for came in flood(rate) if begin <= came.seconds < end]
        if statuses.count(429) > SATURATED * len(statuses):
            return statuses.count(200) / (end - begin)
    raise ContenderError(f"expected some of {RATES[-1]:.0f} requests a second to be refused")


if __name__ == "__main__":
    main()
