"""Where CUDA's libraries are that came with PyTorch or with pip."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "LD_LIBRARY_PATH"


def with_cuda_libraries(environment: dict[str, str]) -> dict[str, str]:
    """An environment for a process in which libraries find CUDA's.

    Pip installs those as `nvidia/*/lib` beside PyTorch. A library in another folder, such as that
    of a kit, does not look for them there.
    """
    folders = [
        str(folder)
        for path in sys.path
        for folder in sorted(Path(path).glob("nvidia/*/lib"))
        if folder.is_dir()
    ]
    before = environment.get(VARIABLE)
    return environment | {VARIABLE: os.pathsep.join([*folders, *([before] if before else [])])}
