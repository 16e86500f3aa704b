"""Runs bundles of the pinned versions with other versions of the libraries.

    python -m docs.tools.versions --output benchmarks/results

builds g2p-en in each precision that ONNX Runtime has, makes an environment for each combination of
versions, decodes held-out words there, and prints a table in Markdown of what each bundle gives.
Environments, but for that of the newest versions, and bundles are kept in `.cache/versions`: remove
the folder after a change that alters bundles.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dragoman.benchmarks.compare.record import as_record, circumstances, write_json
from dragoman.reference_model.recipes import find_recipe, read_examples
from dragoman.reference_model.recipes.examples import Example
from dragoman.runtime.backends.machine import describe_machine
from dragoman.tested_versions import tested_versions
from dragoman.verification.inputs.items import spread

ROOT = Path(__file__).parents[3]
CHILD = Path(__file__).with_name("child.py")
MODEL = "g2p-en"
HELD_OUT = ROOT / "reference_model/pretrained" / MODEL / "held_out.tsv"
BUNDLES = {
    "fp32": ("--precision", "fp32"),
    "int8": ("--precision", "int8"),
    "int4": ("--precision", "int4"),
    "neutral fp32": ("--target", "neutral"),
    "neutral fp16": ("--precision", "fp16"),
}
"""The options of `dragoman build` for each bundle; ONNX Runtime has no kernels of bf16."""

COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fp32": ("fp32", ()),
    "int8": ("int8", ("--products", "fast")),
    "int4": ("int4", ("--products", "fast")),
    "int8, exact products": ("int8", ("--products", "exact")),
    "int4, exact products": ("int4", ("--products", "exact")),
    **{name: (name, ()) for name in BUNDLES if name.startswith("neutral")},
}
"""The bundle of each column of the table, and the options of `child`.

Quantized bundles run with both kinds of kernels, whichever this processor needs."""

LIBRARIES = ("onnxruntime", "tokenizers", "numpy")
OUTSIDE = {
    "onnxruntime": ("1.24.4", "1.25.1", "1.26.0", "1.27.0", "1.28.0", "1.29.0"),
    "tokenizers": ("0.21.0", "1.0.0rc3"),
}
"""Versions that pyproject.toml does not admit."""

NEWEST = ("onnxruntime", "tokenizers<1", "numpy")
"""Requirements of the newest versions that it admits."""


@dataclass(frozen=True)
class Case:
    """A combination of versions.

    Attributes:
        name: what it is, such as "onnxruntime 1.27.0: not admitted"
        requirements: what pip installs
        options: further options of pip
    """

    name: str
    requirements: tuple[str, ...]
    options: tuple[str, ...] = ()

    def environment(self, folder: Path) -> Path:
        """Create the environment if necessary, and return its interpreter."""
        label = "newest" if self.options else "-".join(self.requirements).replace("==", "-")
        directory = folder / label
        python, made = directory / "bin" / "python", directory / "made"
        if self.options or not made.exists():  # the newest versions are others each day
            subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)  # noqa: S603
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
            subprocess.run([*pip, *self.options, *self.requirements], check=True)  # noqa: S603
            made.touch()
        return python


def cases() -> list[Case]:
    """Return all combinations: each library at its versions, and all at their lowest and newest."""
    pinned, lowest = tested_versions(), lowest_versions()

    def case(kind: str, **changes: str) -> Case:
        versions = {name: pinned[name] for name in LIBRARIES} | changes
        changed = ", ".join(f"{name} {version}" for name, version in changes.items())
        requirements = tuple(f"{name}=={version}" for name, version in versions.items())
        return Case(f"{changed}: {kind}" if changed else kind, requirements)

    found = [case("all pinned")]
    for name in LIBRARIES:
        found += [case("not admitted", **{name: version}) for version in OUTSIDE.get(name, ())]
        found.append(case("lowest", **{name: lowest[name]}))
    everything = case("lowest, together", **{name: lowest[name] for name in LIBRARIES})
    newest = Case("newest, with pre-releases", NEWEST, ("--upgrade", "--pre"))
    return [*found, everything, newest]


def lowest_versions() -> dict[str, str]:
    """Return the versions of constraints-lowest.txt by name."""
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(p.name): next(iter(p.specifier)).version for p in pins}


def build(name: str, folder: Path) -> Path:
    """Build a bundle with the libraries of this environment, if necessary."""
    directory = folder / name.replace(" ", "-")
    if not directory.exists():
        command = [sys.executable, "-m", "dragoman", "build", MODEL, "--output", str(directory)]
        # The versions are compared with each other, whatever parity is here.
        command += ["--limit", "50", "--allow-failed-parity", *BUNDLES[name]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    return directory


def run(python: Path, bundle: Path, words: list[str], *options: str) -> dict[str, Any]:
    """Decode words in an environment, and return what `child` prints.

    A child that dies gives its last line of standard error.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # noqa: S603
        [python, CHILD, bundle, *options],
        input=json.dumps(words),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout)
        return found
    lines = done.stderr.strip().splitlines() or [""]
    return {"died": f"exit status {done.returncode}: {lines[-1]}"}


def _without_folders(message: str) -> str:
    """Return a message whose paths are only names: a record is no place for a machine's folders."""
    return re.sub(r"/[^\s:\"]*/", "", message)


def outcome(
    found: dict[str, Any], built: dict[str, Any], examples: list[Example]
) -> dict[str, Any]:
    """Return the row of a bundle under a combination, compared with the pinned versions' texts."""
    row: dict[str, Any] = {
        key: _without_folders(found[key])
        for key in ("died", "not_loaded", "stream")
        if key in found
    }
    if "texts" not in found:
        return row
    errors = found["errors"]
    if errors:
        return row | {
            "refused": len(errors),
            "words": len(examples),
            "error": _without_folders(errors[0]),
        }
    score = find_recipe(MODEL).score
    assert score is not None
    differ = sum(a != b for a, b in zip(found["texts"], built["texts"], strict=True))
    word_error = score(found["texts"], examples)["word error"]
    return row | {"differ": differ, "words": len(examples), "word_error": word_error}


def cell(row: dict[str, Any], built: dict[str, Any]) -> str:
    """Return the cell of the table for a row."""
    if "died" in row:
        return "does not import" if "ImportError" in row["died"] else "ends the process"
    if "not_loaded" in row:
        return "does not load"
    if "refused" in row:
        return f"refuses {row['refused'] if row['refused'] < row['words'] else 'all'} inputs"
    text = "as built"
    if row["differ"]:
        figures = f"{row['word_error']:.1%} for {built['word_error']:.1%}"
        other = row["word_error"] - built["word_error"] > 0.01
        text = f"**other words**: {figures}" if other else f"{row['differ']} words differ"
    return f"{text}; `stream` fails" if "stream" in row else text


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as a table in Markdown."""
    columns = list(rows[0]["outcomes"])
    lines = [f"| versions | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    for row in rows:
        cells = [cell(row["outcomes"][key], rows[0]["outcomes"][key]) for key in columns]
        lines.append(f"| {row['case']} | {' | '.join(cells)} |")
    return "\n".join(lines)


@click.command()
@click.option("--words", type=click.IntRange(min=1), default=2000, show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), default=ROOT / ".cache/versions")
@click.option("--output", type=click.Path(path_type=Path), help="Folder of the record.")
def main(words: int, folder: Path, output: Path | None) -> None:
    """Decode held-out words with bundles of the pinned versions under other versions."""
    load_average = os.getloadavg()[0]
    sources = {example.source: example for example in read_examples(HELD_OUT)}
    examples = spread([*sources.values()], words)
    texts = [example.source for example in examples]
    machine = describe_machine()
    bundles = {name: build(name, folder / "bundles") for name in BUNDLES}
    rows: list[dict[str, Any]] = []
    built: dict[str, dict[str, Any]] = {}
    for case in cases():
        python = case.environment(folder)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            runs = {
                name: pool.submit(run, python, bundles[bundle], texts, *options)
                for name, (bundle, options) in COLUMNS.items()
            }
            found = {name: future.result() for name, future in runs.items()}
        built = built or found
        outcomes = {name: outcome(found[name], built[name], examples) for name in COLUMNS}
        versions: dict[str, str] = next(
            (f["versions"] for f in found.values() if "versions" in f), {}
        )
        rows.append({"case": case.name, "versions": versions, "outcomes": outcomes})
        click.echo(table([rows[0], rows[-1]]).splitlines()[-1], err=True)
    click.echo(table(rows))
    if output is not None:
        record = {
            "processor": machine.processor,
            "features": machine.features,
            "saturates": machine.saturates,
            "rows": rows,
        }
        where = circumstances("docs.tools.versions", load_average)
        output.mkdir(parents=True, exist_ok=True)
        write_json(as_record(record, where), output / "versions.json")


if __name__ == "__main__":
    main()
