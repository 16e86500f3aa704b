"""`dragoman inspect --polygraphy`: the inputs are those that decoding has, and Polygraphy accepts
and passes what is written."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from polygraphy.json import load_json

from dragoman import DragomanError, api
from dragoman.optimize.step_inputs import record_steps
from dragoman.runtime import load, read_bundle
from dragoman.runtime.format.bundle import Bundle
from dragoman.runtime.format.contract import GraphSpec, TensorSpec
from dragoman.runtime.format.manifest import EngineReport, Profile, Range, TensorRTEngines
from dragoman.runtime.format.writing import write_manifest

from ..bundle_files import record_files
from .test_disk_full import limited
from .test_missing_libraries import hiding
from .test_user_mistakes import error_of

Outcome = CompletedProcess[str]
Dragoman = Callable[..., Outcome]

CAPACITY = 12


@pytest.fixture(scope="module")
def neutral(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return api.export(checkpoint, tmp_path_factory.mktemp("bundles") / "it's neutral").directory


@pytest.fixture(scope="module")
def engines(neutral: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle as of engines in fp16 for two to four rows; no GPU is here to load them."""
    directory = tmp_path_factory.mktemp("bundles") / "engines"
    shutil.copytree(neutral, directory, ignore=shutil.ignore_patterns("*.onnx", "*.bin"))
    manifest = read_bundle(neutral).manifest

    def pinned(tensor: TensorSpec) -> TensorSpec:
        sizes: dict[int | str, int] = {"query": 1, "capacity": CAPACITY}
        is_number = tensor.dtype == "float32" and tensor.role != "next_log_probability"
        return dataclasses.replace(
            tensor,
            shape=tuple(sizes.get(d, d) for d in tensor.shape),
            dtype="float16" if is_number else tensor.dtype,
        )

    graphs: dict[str, GraphSpec] = {}
    for name, spec in manifest.graphs.items():
        (directory / f"{name}.engine").write_bytes(b"of another machine")
        graphs[name] = dataclasses.replace(spec.map(pinned), file=f"{name}.engine")
    executable = TensorRTEngines(
        version="1.7.1.116",
        cuda_version="13.0",
        compute_capabilities=(),
        capacity=CAPACITY,
        profiles=(Profile(Range(3, 4, 4), Range(4, 8, 9)),),
        refittable=False,
        reports={name: EngineReport({}, {}, 1, None, None) for name in graphs},
    )
    write_manifest(
        dataclasses.replace(
            manifest,
            target="tensorrt-rtx",
            precision="fp16",
            graphs=graphs,
            executable=executable,
            files=record_files(directory),
        ),
        directory,
    )
    return directory


@pytest.fixture
def polygraphy(tmp_path: Path) -> Callable[..., Outcome]:
    """Run `commands.sh`, with the command `polygraphy` of this Python. Commands of its own are
    appended to every `polygraphy run`."""

    shell = shutil.which("sh")
    assert shell is not None

    def run(directory: Path, *arguments: str, appended: str = "") -> Outcome:
        tool = tmp_path / "bin" / "polygraphy"
        tool.parent.mkdir(exist_ok=True)
        code = "import sys; sys.argv[0] = 'polygraphy'; from polygraphy.tools import main; main()"
        command = f'{shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"'
        lines = ["#!/bin/sh", f'case "$1" in run) {command} {appended};; *) {command};; esac']
        tool.write_text("\n".join(lines))
        tool.chmod(0o755)
        path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            [shell, str(directory / "commands.sh"), *arguments],
            env=os.environ | {"PATH": path},
            cwd=tmp_path,
            text=True,
            capture_output=True,
        )

    return run


def test_inputs_are_those_of_decoding(
    dragoman: Dragoman, neutral: Path, checkpoint: Path, tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    texts.write_text("is\ndragoman\nportrait\nneed\n", encoding="utf-8")
    directory = tmp_path / "probe"
    outcome = dragoman("inspect", neutral, "--polygraphy", directory, "--inputs", texts)
    size = sum(file.stat().st_size for file in directory.iterdir())
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout == (
        f"Wrote {directory}, {size / 1e6:.1f} MB: inputs of 2 rows, of the decoder at the steps "
        f"0, 1, 8, 15. Next: sh {directory}/commands.sh\n"
    )
    (encoder,) = load_json(str(directory / "encoder-inputs.json"))
    decoder = load_json(str(directory / "decoder-inputs.json"))
    with load(neutral) as model:
        # Of the most frequent length: nothing is padded.
        expected = model.generate(["dragoman", "portrait"], max_new_tokens=16)
        start = model.manifest.model.start_token_id
    assert encoder["source_mask"].all()
    session = onnxruntime.InferenceSession(neutral / "decoder.onnx")
    for step, feed in zip((0, 1, 8, 15), decoder, strict=True):
        assert feed["position"].tolist() == [step, step]
        (chosen,) = session.run(["next_token"], feed)
        for row, result in enumerate(expected):
            tokens = [start, *result.tokens]
            if step < len(tokens):
                assert feed["token"][row] == tokens[step]
            if step < len(result.tokens):
                assert chosen[row] == result.tokens[step]
        for name in ("past_key_0", "past_value_0"):  # rows are written up to their position
            assert (np.abs(feed[name]).max(axis=(0, 1, 3)) > 0).tolist() == [
                position < step for position in range(feed[name].shape[2])
            ]


def test_polygraphy_passes_graphs(
    dragoman: Dragoman,
    neutral: Path,
    tmp_path: Path,
    polygraphy: Callable[..., Outcome],
) -> None:
    """Those of target cpu, and the neutral ones that they are compared with."""
    bundle = api.optimize(neutral, tmp_path / "cpu").bundle.directory
    directory = tmp_path / "probe"
    outcome = dragoman("inspect", bundle, "--polygraphy", directory, "--graphs", neutral)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert stat.S_IMODE((directory / "commands.sh").stat().st_mode) == 0o755
    outcome = polygraphy(directory)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    for said in (
        "==== Data (4 iterations) ====",
        "---- 5 Graph Output(s) ----",  # of the decoder: three, and a key and a value
        "PASSED | Output: present_value_0 is valid",
        "Passed: 1/1 iterations",
        "Passed: 4/4 iterations",
    ):
        assert said in outcome.stdout, said
    assert outcome.stdout.count("[I] PASSED | Runtime") == 4
    refused = polygraphy(directory, "gpu")
    assert refused.returncode == 2 and "operators that TensorRT does not have" in refused.stderr


def test_commands_for_engines(
    dragoman: Dragoman,
    engines: Path,
    neutral: Path,
    tmp_path: Path,
    polygraphy: Callable[..., Outcome],
) -> None:
    """Polygraphy accepts the options, and makes of them a script that runs the engine."""
    directory = tmp_path / "probe"
    outcome = dragoman("inspect", engines, "--polygraphy", directory, "--graphs", neutral)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    feeds = load_json(str(directory / "decoder-inputs.json"))
    for feed in feeds:
        assert feed["past_key_0"].dtype == feed["cross_value_0"].dtype == np.float16
        assert feed["past_key_0"].shape == (3, 2, CAPACITY, 16)
        assert feed["token"].shape == (3, 1)
        assert 4 <= feed["source_mask"].shape[1] <= 9
    script = directory / "commands.sh"
    text = script.read_text(encoding="utf-8")
    for name in ("encoder", "decoder"):
        assert f'polygraphy inspect model "$BUNDLE"/{name}.engine --model-type engine' in text
    assert "POLYGRAPHY_USE_TENSORRT_RTX=1" in text
    lines = [line for line in text.splitlines() if "inspect model" not in line]
    script.write_text("\n".join(lines) + "\n", encoding="utf-8")  # loading engines needs a GPU
    outcome = polygraphy(directory, "gpu", appended="--gen-script script.py")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    generated = (directory / "script.py").read_text(encoding="utf-8")
    assert "TrtRunner(deserialize_engine" in generated
    assert str(engines / "decoder.engine") in generated
    assert "decoder-outputs.json" in generated and "check_error_stat={'': 'max'}" in generated
    assert "atol={'': 0.05, 'next_token': 1000000000.0}" in generated


def test_tensorrt_builds_the_encoder_from_these_shapes(
    dragoman: Dragoman, neutral: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "probe"
    assert dragoman("inspect", neutral, "--polygraphy", directory).returncode == 0
    text = (directory / "commands.sh").read_text(encoding="utf-8")
    (command,) = (c for c in text.replace("\\\n", "").splitlines() if " --trt " in c)
    words = shlex.split(command)
    options = words[words.index("--decomposable-attentions") : words.index("--load-inputs")]
    assert options[1:] == [
        *("--trt-min-shapes", "source:[1,1]", "source_mask:[1,1]"),
        *("--trt-opt-shapes", "source:[2,32]", "source_mask:[2,32]"),
        *("--trt-max-shapes", "source:[2,32]", "source_mask:[2,32]"),
    ]
    convert = ["convert", str(neutral / "encoder.onnx"), "--convert-to", "trt", "-o", "engine"]
    code = (
        f"import sys; sys.argv[1:] = {convert + options}; from polygraphy.tools import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"POLYGRAPHY_USE_TENSORRT_RTX": "1"},
        cwd=tmp_path,
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "engine").stat().st_size > 0


def test_refusals(dragoman: Dragoman, neutral: Path, engines: Path, tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    for arguments, message in (
        ((engines, "--polygraphy", probe), "expected graphs of the same model besides engines"),
        ((engines, "--polygraphy", probe, "--graphs", engines), "expected ONNX graphs, found eng"),
        ((neutral, "--polygraphy", tmp_path), f"{tmp_path} already exists: choose another name"),
        ((neutral, "--polygraphy", probe, "--inputs", tmp_path / "x"), "found nothing at"),
        ((neutral, "--graphs", neutral), "expected with --polygraphy DIRECTORY"),
        ((neutral, "--polygraphy", probe, "--json"), "--json: expected without --polygraphy"),
    ):
        assert message in error_of(dragoman("inspect", *arguments))
    long = tmp_path / "long"
    long.write_text("transformation\n", encoding="utf-8")
    message = error_of(
        dragoman(
            *("inspect", engines, "--polygraphy", probe, "--graphs", neutral, "--inputs", long)
        )
    )
    assert message == "Error: expected a source of at most 9 tokens, found none among 1"
    assert not probe.exists()


def test_another_model(neutral: Path, engines: Path, tmp_path: Path) -> None:
    other = shutil.copytree(engines, tmp_path / "other")
    manifest = read_bundle(other).manifest
    write_manifest(
        dataclasses.replace(manifest, architecture=manifest.architecture | {"d_ff": 7}), other
    )
    with pytest.raises(DragomanError, match="holds another model than"):
        api.write_polygraphy(other, tmp_path / "probe", graphs=neutral)


def test_bfloat16_is_refused(neutral: Path) -> None:
    read = read_bundle(neutral)

    def in_bf16(tensor: TensorSpec) -> TensorSpec:
        is_number = tensor.dtype == "float32"
        return dataclasses.replace(tensor, dtype="bfloat16" if is_number else tensor.dtype)

    graphs = {name: spec.map(in_bf16) for name, spec in read.manifest.graphs.items()}
    receiver = Bundle(Path("in bf16"), dataclasses.replace(read.manifest, graphs=graphs))
    with pytest.raises(DragomanError, match=r"^in bf16: expected numbers that NumPy has"):
        record_steps(read, receiver)


def test_without_polygraphy_or_room(spawn: Dragoman, neutral: Path, tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    outcome = spawn("inspect", neutral, "--polygraphy", probe, prelude=hiding("polygraphy"))
    assert "pip install 'dragoman[polygraphy]'" in error_of(outcome)
    outcome = spawn("inspect", neutral, "--polygraphy", probe, prelude=limited(20_000))
    assert error_of(outcome) == (
        f"Error: cannot write {probe}: File too large; nothing was left behind"
    )
    assert list(tmp_path.iterdir()) == []


SIZES: dict[str, Any] = {
    "vocab_size": 29,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
}


@pytest.mark.parametrize("pairs", [False, True])
def test_of_an_encoder(pairs: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    more: dict[str, Any] = {"intermediate_size": 40, "max_position_embeddings": 13}
    config = transformers.BertConfig(**SIZES, **more)
    head = transformers.BertForQuestionAnswering if pairs else transformers.BertModel
    head(config).save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    bundle = api.export(tmp_path / "checkpoint", tmp_path / "bundle").directory
    written = api.write_polygraphy(bundle, tmp_path / "probe")
    assert (written.rows, written.steps) == (2, ())
    (feed,) = load_json(str(tmp_path / "probe" / "encoder-inputs.json"))
    assert set(feed) == {"source", "source_mask"} | ({"token_type"} if pairs else set())
    assert feed["source"].shape == (2, 13)
    if pairs:
        assert feed["token_type"].tolist() == [[0] * 7 + [1] * 6] * 2
    onnxruntime.InferenceSession(bundle / "encoder.onnx").run(None, feed)
    script = (tmp_path / "probe" / "commands.sh").read_text(encoding="utf-8")
    assert "decoder" not in script and "--trt-min-shapes source:[1,1]" in script.replace("'", "")


def test_of_a_decoder(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=29,
            n_positions=24,
            n_embd=24,
            n_layer=2,
            n_head=3,
            bos_token_id=1,
            eos_token_id=28,
            initializer_range=0.3,
        )
    )
    model.save_pretrained(tmp_path / "checkpoint")
    bundle = api.export(tmp_path / "checkpoint", tmp_path / "bundle").directory
    prompts = [[3, 4, 5], [6, 7, 8]]
    with load(bundle) as loaded:
        found = loaded.generate(prompts, max_new_tokens=13)
    read = [[*prompt, *result.tokens] for prompt, result in zip(prompts, found, strict=True)]
    assert sorted(map(len, read)) == [9, 16]  # the end token's row goes on to be decoded
    session = onnxruntime.InferenceSession(bundle / "decoder.onnx")
    inputs = record_steps(read_bundle(bundle), sources=prompts)
    assert inputs.encoder is None and list(inputs.decoder) == [0, 1, 8, 15]
    for step, feed in inputs.decoder.items():
        assert feed["position"].tolist() == [step, step]
        (chosen,) = session.run(["next_token"], feed)
        for row, tokens in enumerate(read):
            assert tokens[step : step + 1] in ([], [feed["token"][row, 0]])
            assert step < 2 or tokens[step + 1 : step + 2] in ([], [chosen[row]])
    written = api.write_polygraphy(bundle, tmp_path / "probe")
    assert (written.rows, written.steps) == (2, (0, 1, 8, 15))
    script = (tmp_path / "probe" / "commands.sh").read_text(encoding="utf-8")
    assert "encoder" not in script and "build engines" in script
