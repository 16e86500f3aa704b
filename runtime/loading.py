"""Loads bundles."""

from __future__ import annotations

from pathlib import Path

from dragoman.errors import DragomanError, shown
from dragoman.settings.fields import is_integer

from .backends import check_backend, gpu_index, open_backend
from .format.bundle import Bundle, read_bundle
from .format.known_answers import CHECKS, Check
from .known_answers import check_known_answers
from .model import Model


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
