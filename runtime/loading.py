"""Loads bundles, checks them by their known answers, and remembers where they were right."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import user_cache, write_whole
from dragoman.settings.fields import is_integer

from .answer_comparison import Outcome, compare_answers, worst
from .backends import check_backend, gpu_index, open_backend
from .backends.machine import Machine, describe_machine
from .format.bundle import Bundle, read_bundle, read_known_answers
from .format.known_answers import CHECKS, Check, KnownAnswers, digest, record_of
from .format.manifest import Manifest, TensorRTEngines
from .model import Model

log = logging.getLogger(__name__)

MOST_PASSES = 1000
"""The most passes that are remembered: the oldest ones are forgotten."""


class KnownAnswersError(DragomanError):
    """A bundle gives other outputs on this machine than those proven where it was built."""

    status, code = 503, "known_answers"


def load(
    directory: str | Path | Bundle,
    *,
    threads: int | None = None,
    backend: str | None = None,
    device: str | None = None,
    check: Check = "once",
    allow_fallback: bool = False,
) -> Model:
    """Load a bundle, and check that it computes what it computed where it was built.

    Args:
        directory: the bundle's directory; or the result of `read_bundle`, whose files are not
            checked again
        threads: number of CPU threads; None: one for each core
        backend: "onnxruntime" (CPU), "openvino", "onnxruntime-cuda", "tensorrt-rtx" or "tensorrt";
            None: the first that runs the bundle, on `device` if it is given. Engines run on the
            package that built them, graphs on the CPU.
        device: "cpu", "cuda" (the first GPU) or "cuda:1" (the second one), as CUDA counts them, see
            CUDA_VISIBLE_DEVICES. None: the processor, or the first GPU for a backend that runs on
            one.
        check: when to compare outputs with the bundle's known answers: "once" for each combination
            of bundle, library versions and hardware, which is remembered in the user's cache;
            "always"; "never". Unless it is "always", a large file's SHA-256 is not computed again
            where it was right, see `read_bundle`
        allow_fallback: whether "onnxruntime-cuda" may run nodes of a decoder for which it has no
            CUDA kernel on the processor; each step then waits for them

    Raises:
        KnownAnswersError: the bundle gives other outputs on this machine than those proven.
        BundleError: the bundle is damaged or of a newer schema; lists everything that is wrong.
        BackendError: the backend's library or device is missing, or cannot run this bundle.
        DragomanError: an argument is not one of its values, or `device` is not one of this machine
            or not of the backend's kind.
    """
    if threads is not None:
        if not is_integer(threads):
            raise DragomanError(f"threads: expected an integer, found {shown(threads)}")
        if threads < 1:
            raise DragomanError(f"threads: expected at least 1, found {shown(threads)}")
        threads = int(threads)
    if check not in CHECKS:
        raise DragomanError(f"check: expected one of {', '.join(CHECKS)}, found {shown(check)}")
    gpu = gpu_index(device) or 0
    bundle = read_bundle(directory, remembered=check != "always")
    opened = open_backend(bundle, backend, threads, device, allow_fallback=allow_fallback)
    model = Model(bundle, opened)
    try:
        check_known_answers(model, check_backend(bundle, backend, device).name, check, gpu)
    except BaseException:
        model.close()
        raise
    return model


def check_known_answers(model: Model, backend: str, check: Check, gpu: int = 0) -> None:
    """Check a loaded bundle as `load` does.

    The first time on a machine, a warning is logged if the bundle's engines were never compared
    with the oracle.

    Args:
        check: "once": unless this bundle passed on this machine before; "always"; "never"
    """
    if check == "never" or record_of(model.manifest) is None:
        return  # before the machine is examined
    machine = machine_of(model.bundle, backend, gpu)
    passed_before = has_passed(model.bundle, machine)
    if check == "once" and passed_before:
        return
    known = read_known_answers(model.bundle)
    if known is None:
        return
    outcomes = worst(
        [
            compare_answers(model, known, known.at_load, margins=True),
            compare_answers(model, known, known.at_load[:1]),  # alone, by the graph's own choice
        ]
    )
    problem = conclude(model.bundle, known, outcomes, machine)
    if problem is not None:
        raise KnownAnswersError(problem)
    if not passed_before and not_run(model.manifest):
        log.warning(
            "%s: its engines have not been compared with the oracle: run dragoman verify %s",
            *(model.manifest.name, model.bundle.directory),
        )


def not_run(manifest: Manifest) -> bool:
    """Return whether a bundle has engines whose outputs were never compared with the oracle's."""
    engines = manifest.executable
    return isinstance(engines, TensorRTEngines) and engines.parity is None


def machine_of(bundle: Bundle, backend: str, gpu: int = 0) -> Machine:
    """Describe this machine as far as a bundle's outputs depend on it; see `describe_machine`."""
    tokenizers = bundle.manifest.tokenizers
    pieces = tokenizers is not None and (
        tokenizers.source_vocabulary is not None or tokenizers.target_vocabulary is not None
    )
    return describe_machine(backend, *(["sentencepiece"] if pieces else []), gpu=gpu)


def has_passed(bundle: Bundle, machine: Machine) -> bool:
    """Return whether a bundle's known answers were right on this machine when last compared."""
    file = _file(bundle, machine)
    with suppress(OSError):
        return file is not None and file.is_file()
    return False


def conclude(
    bundle: Bundle,
    known: KnownAnswers,
    outcomes: Sequence[Outcome],
    machine: Machine,
    failure: str | None = None,
) -> str | None:
    """Remember that a bundle passed, or forget it; return what differs, if anything does.

    Args:
        failure: what is wrong besides the outcomes
    """
    file = _file(bundle, machine)
    if any(outcome.problem is not None for outcome in outcomes):
        failure = describe_difference(bundle.manifest, known, outcomes, machine)
    if failure is not None:
        if file is not None:
            with suppress(OSError):
                file.unlink()
        return failure
    if file is not None:
        text = json.dumps({"bundle": bundle.manifest.name, **dataclasses.asdict(machine)}, indent=1)
        with suppress(DragomanError, OSError):
            write_whole(file, lambda path: path.write_text(text + "\n", encoding="utf-8"))
            passes = sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in passes[:-MOST_PASSES]:
                old.unlink()
    return None


def _file(bundle: Bundle, machine: Machine) -> Path | None:
    of = [digest(bundle.manifest), dataclasses.asdict(machine)]
    name = hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:32]
    return user_cache("known-answers", f"{name}.json")


def describe_difference(
    manifest: Manifest, known: KnownAnswers, outcomes: Sequence[Outcome], machine: Machine
) -> str:
    """Describe which outputs differ, what is other than where they were proven, and what to do."""
    failed = [outcome for outcome in outcomes if outcome.problem is not None]
    by_tokenizer = all(outcome.by_tokenizer for outcome in failed)
    texts, own = ("tokenizers", "sentencepiece"), ("dragoman", "numpy")
    backends = [name for name in machine.versions if name not in (*texts, *own)]

    def changed(names: Iterable[str]) -> list[str]:
        then = known.versions
        return [name for name in names if then.get(name) not in (None, machine.versions.get(name))]

    what = f"{len(failed)} of {len(outcomes)} known answers differ"
    shown_one = next((one for one in failed if not one.same_tokens), failed[0])
    first = f"{shown_one.answer.name}: {shown_one.problem}"
    outputs = "probabilities" if shown_one.same_tokens else "tokens"
    outputs = outputs if manifest.model.has_decoder else "outputs"
    libraries = changed(texts if by_tokenizer else backends)
    features = sorted(set(known.features) ^ set(machine.features))
    elsewhere = machine.gpu is not None or machine.processor != known.processor or bool(features)
    if by_tokenizer or not elsewhere:
        libraries = libraries or changed(own)
    if libraries:
        now = " with ".join(f"{name} {machine.versions.get(name, 'none')}" for name in libraries)
        renamed = {} if machine.gpu is None else {"onnxruntime": "onnxruntime-gpu"}
        then = " and ".join(f"{renamed.get(n, n)}=={known.versions[n]}" for n in libraries)
        return (
            f"{manifest.name}: {now} gives other {outputs} than those proven at build ({what}): "
            f"install {then}, which gave them; {first}"
        )
    if machine.gpu is not None and not by_tokenizer:
        of = ", ".join(f"{name} {machine.versions[name]}" for name in backends)
        return (
            f"{manifest.name}: {machine.gpu.name} ({of}) gives other {outputs} than those proven "
            f"at build on {known.processor} ({what}): try another driver, or build the bundle in "
            f"a wider precision; {first}"
        )
    if elsewhere and not by_tokenizer:
        differing = f", which differ in {', '.join(features)}" if features else ""
        return (
            f"{manifest.name}: {machine.processor} gives other {outputs} than those proven at "
            f"build on {known.processor}{differing} ({what}): build the bundle on this kind of "
            f"machine; {first}"
        )
    return (
        f"{manifest.name} gives other {outputs} than those proven at build, with the same versions "
        f"on the same kind of machine ({what}): its files or this machine's memory are damaged: "
        f"copy or build the bundle again; {first}"
    )
