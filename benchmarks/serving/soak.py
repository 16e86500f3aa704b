"""A server under load for a long time, with clients that misbehave: nothing may go wrong.

    python -m dragoman.benchmarks.serving.soak bundles/g2p-en --minutes 30

Requests arrive at a share of what the server can do. Some clients go away in the middle, some send
what is no request, and from time to time so many come at once that some must be refused. Every
answer is compared with the library's for the same source and options; afterwards no slot may be in
use, and the server must hold as much memory as after the first fifth of the time. The exit status
is 1 unless all of that is so.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from dragoman.errors import DragomanError

from ..circumstances import circumstances
from ..harness import HERE, ContenderError, call_in
from .clients import OPTIONS, Clients, library_answers
from .load import send_all
from .measuring import SEED
from .served import running

SHARE = 0.8
"""Of the rate at which the server is saturated."""
WAITING = 128
ATTEMPT_SECONDS = 4.0


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
            rate = SHARE * _saturation(url, sources)
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
    console.print(f"{outcome.answered} answers as the library's, {outcome.refused} refused")


def _sources(bundle: Path) -> list[str]:
    """Words of letters, of lengths 1 to 20, that any bundle of texts reads somehow."""
    generator = random.Random(SEED)
    letters = "abcdefghijklmnopqrstuvwxyz"
    lengths = [1 + n % 20 for n in range(60)]
    return ["".join(generator.choices(letters, k=length)) for length in lengths]


def _saturation(url: str, sources: Sequence[str]) -> float:
    """Requests a second that are answered when as many wait as may, with all kinds of options."""
    bodies = [{"source": s, **OPTIONS[i % len(OPTIONS)]} for i, s in enumerate(sources)]
    started, answered = time.perf_counter(), 0
    while time.perf_counter() - started < ATTEMPT_SECONDS:
        answers = call_in(HERE, send_all, url, bodies, [0.0] * len(bodies))
        answered += sum(answer.status == 200 for answer in answers)
        last = max(answer.seconds for answer in answers)
        rate = len(bodies) / last
    return rate


if __name__ == "__main__":
    main()
