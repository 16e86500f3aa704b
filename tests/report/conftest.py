"""A report written by hand, with texts that are hostile to a page, and one of real bundles."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman import api
from dragoman.reference_model import save_checkpoint
from dragoman.reference_model.recipes import Example, write_examples
from dragoman.reference_model.training.history import Candidate, Epoch, write_history
from dragoman.runtime import read_bundle
from dragoman.runtime.format.manifest import FileRecord, PassRecord, Refusal
from dragoman.runtime.format.parity import (
    Distance,
    DistributionParity,
    Divergence,
    Parity,
    ReferenceParity,
    TaskParity,
    TensorParity,
    TokenParity,
)
from dragoman.verification.parity_rows import parity_rows
from dragoman.verification.report.contents import (
    AttentionExample,
    BundleReport,
    Fact,
    Licence,
    Percentiles,
    Report,
    Speed,
    Timing,
    Training,
)
from dragoman.verification.sensitivity import (
    Effect,
    Keeping,
    LayerSensitivity,
    ProductSensitivity,
    Sensitivity,
)
from dragoman.verification.verdict import verdict_of

from ..zoo import letters_model, letters_tokenizers

HOSTILE = '</script><script>alert(1)</script> & "it\'s" $x^2$ \u2028 日本語 <b>bold</b>'
"""In a text that a model has read."""
WORDS = ["dragoman", "transformer", "a", "encoder", "decoder"]


def parity(*, passed: bool = True, divergences: int = 3) -> Parity:
    return Parity(
        passed=passed,
        oracle="reference_model, PyTorch, fp32",
        inputs="held_out.tsv, 100 lines",
        backend="onnxruntime",
        tensors=(
            TensorParity("cross_key_0", 0.151, 57.0, 0.0221, None, True, 300),
            TensorParity("cross_value_1", 0.131, 5.0, 0.0331, None, True, 300),
            TensorParity("logits", 0.171, 24.0, 0.0251, None, True, 466),
        ),
        tokens=TokenParity(
            sequences=100,
            identical=100 - divergences,
            divergences=tuple(divergence(n) for n in range(divergences)),
            passed=passed,
            allowed_margin=2.1,
        ),
        tasks=(TaskParity("word error", 0.3127, 0.3144, True),),
        references=ReferenceParity("held_out.tsv", 41, 299, 0.22681, 0.22713, 0.08, True),
        distributions=DistributionParity(
            positions=466,
            bundle=Distance(5.93e-5, 1.02e-5, 9.51e-4, 2.21e-3, 0.99785),
            rounded=Distance(7.31e-5, 1.1e-5, 1.2e-3, 3.3e-3, 0.99),
            allowed=2.92e-4,
            passed=True,
        ),
    )


def divergence(number: int) -> Divergence:
    if number == 1:  # as older versions have recorded it
        return Divergence(17, 4, 27, 3, 0.071)
    return Divergence(
        input=number,
        step=2,
        expected_token=27,
        found_token=3,
        margin=0.1 + number / 10,
        origin=f"held_out.tsv, line {number + 5}",
        source=HOSTILE,
        expected="T R AE N S",
        found="T R AE M Z",
    )


def sensitivity(products: int = 5) -> Sensitivity:
    def product(number: int) -> ProductSensitivity:
        quantized = number != products - 1
        return ProductSensitivity(
            name=f"decoder.layers.{number}.self_attention.query+key+value",
            modules=(f"decoder.layers.{number}.self_attention.query",),
            layer=f"decoder.layers.{number}",
            parameters=1000 + number,
            error=0.0123 + number / 100,
            allowed=0.15,
            quantized=quantized,
            kept=number == 0,
            alone=Effect(1.25e-5 * (number + 1), 3.5e-4, 0.9975) if quantized else None,
            extra_bytes=3000 + number,
        )

    made = tuple(product(number) for number in range(products))
    worst = [p.name for p in reversed(made[:-1])]
    return Sensitivity(
        bundle="g2p-en",
        target="cpu",
        precision="int8",
        weights_sha256="ab" * 32,
        measure="divergence",
        inputs="held_out.tsv, 32 lines",
        random=False,
        calibration=None,
        positions=235,
        products=made,
        layers=tuple(
            LayerSensitivity(f"decoder.layers.{n}", (made[n].name,), Effect(1e-5 * n, 1e-3, 0.99))
            for n in range(min(3, products))
        ),
        keeping=(
            Keeping(0, (), Effect(5.01e-5, 1.16e-3, 0.9951), 2_240_000),
            Keeping(1, (worst[0],), Effect(2.02e-5, 1.1e-3, 0.9952), 2_260_000),
            Keeping(4, tuple(worst[1:4]), Effect(4.57e-14, 7e-13, 1.0), 8_380_000),
        ),
    )


def training() -> Training:
    return Training(
        recipe="words.json",
        metric="chrF",
        pairs={"train": 28_896, "validation": 612, "held_out": 1400},
        dropped={"a duplicate": 163, HOSTILE: 5},
        corpora=("news.en and news.de: 1,200 pairs after cleaning, weight 0.25",),
        unknown=("held out source: 3 of 40", "held out target: 1 of 9"),
        held_out={"chrF": "53.22", "exact match": "71.00%"},
        options={"epochs": 3, "precision": "bf16", "note": HOSTILE},
        epochs=tuple(
            Epoch(n, 935 * n, 7.25 / n, 5.75 / n, 12.5 * n, 1234.5 + n) for n in range(1, 4)
        ),
        candidates=(
            Candidate("average", "epochs 2 to 3", 2.8751, 33.9375),
            Candidate("last", "epoch 3", 1.9167, 37.5, delivered=True),
        ),
    )


def timing(batch: int, length: int) -> Timing:
    def milliseconds(p50: float) -> Percentiles:
        return Percentiles(p50, p50 * 1.1, p50 * 1.2)

    return Timing(
        batch_size=batch,
        source_length=length,
        new_tokens=64,
        encoder=milliseconds(0.11 * batch + length / 100),
        prompt=None,
        step=milliseconds(0.0702 * batch),
        sentence=milliseconds(4.613 * batch + length / 10),
        tokens_per_second=11936.4 / (1 + length / 100) * batch**0.5,
    )


def bundle_report(label: str = "g2p-int8", found: Parity | None = None) -> BundleReport:
    """With everything."""
    found = found or parity()
    return BundleReport(
        label=label,
        name="g2p-en",
        target="cpu",
        precision="int8",
        verdict=verdict_of("g2p-en in int8 for target cpu", "int8", found, "bundles/g2p-int8"),
        facts=(Fact("model", "g2p-en"), Fact("note", HOSTILE)),
        architecture={"d_model": 160, "head": None},
        tool_versions={"torch": "2.13.0"},
        manifest_sha256="cd" * 32,
        signed=True,
        files=(
            FileRecord("decoder.onnx", 67951, "0" * 63 + "1"),
            FileRecord("weights.bin", 2138752, "0" * 63 + "2"),
        ),
        size_bytes=2_206_703,
        keep_fp32=("decoder.layers.0.self_attention.query",),
        licences=(
            Licence("bundle", "LICENSE", "Apache License", "1" * 64, f"Apache License\n{HOSTILE}"),
            Licence("checkpoint", "README.md", "mit", "2" * 64, ""),
        ),
        training=training(),
        parity=found,
        tasks=found.tasks,
        checks=parity_rows(found),
        passes=(
            PassRecord("attention", "encoder", 4, (), 134, 101, 3.3e-7, 1e-5),
            PassRecord("query-scale", "encoder", 0, (), 101, 101, 0.0, 1e-5),
            PassRecord(
                "greedy-choice",
                "decoder",
                0,
                (Refusal("n0", "ReduceMax", "the vocabulary of 42 is small"),),
                117,
                117,
                None,
                1e-5,
            ),
        ),
        sensitivity=sensitivity(),
        speed=Speed(
            backend="onnxruntime",
            threads=2,
            runs=3,
            audio=False,
            load_seconds=0.0731,
            peak_memory_mb=115.2,
            timings=tuple(timing(b, n) for n in (8, 32, 64) for b in (1, 8, 32)),
        ),
        attention=(
            AttentionExample(
                "output to source", HOSTILE, ("N", "$"), ("k", "n"), ((0.25, 0.75), (0.5, 0.5))
            ),
        ),
        missing={},
    )


def report(*bundles: BundleReport) -> Report:
    return Report(
        created="2026-01-02T03:04:05+00:00",
        dragoman="0.1.0",
        machine="a machine, 2 cores",
        command="dragoman report bundles/g2p-int8 -o report.html",
        bundles=bundles or (bundle_report(),),
    )


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With tokenizers, held-out words and a licence."""
    directory = tmp_path_factory.mktemp("checkpoints") / "small"
    save_checkpoint(letters_model(max_source_positions=20, max_target_positions=16), directory)
    letters_tokenizers(directory)
    write_examples([Example(word, ("D R", "AE G")) for word in WORDS], directory / "held_out.tsv")
    made = training()
    record = {
        "recipe": "g2p-en",
        "held_out": {"word error": 0.25, "phone error": 0.0625},
        "training": made.options,
        "data": {**made.pairs, "dropped": made.dropped},
        "candidates": [dataclasses.asdict(candidate) for candidate in made.candidates],
    }
    (directory / "recipe.json").write_text(json.dumps(record), encoding="utf-8")
    write_history(made.epochs, directory / "history.jsonl")
    (directory / "LICENSE").write_text("Licence of words\nMay be used.\n", encoding="utf-8")
    return directory


Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A bundle, built once for the same options."""
    known: dict[str, Path] = {}

    def make(precision: str, *, attention: bool = False) -> Path:
        key = f"{precision} {attention}"
        if key not in known:
            known[key] = tmp_path_factory.mktemp("bundles") / precision
            api.build(
                checkpoint,
                known[key],
                precision=precision,  # type: ignore[arg-type]
                attention=attention,
                threads=1,
            )
            read_bundle(known[key])
        return known[key]

    return make
