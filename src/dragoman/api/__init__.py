"""The Python API of the commands.

The functions are `export`, `optimize`, `build`, `distill`, `verify`, `verify_known_answers`,
`sensitivity`, `report`, `sign`, and `write_polygraphy` (`inspect --polygraphy`).

```python
from dragoman.api import build
built = build("g2p-en", "bundles/g2p-en", precision="int8")
print(built.bundle.size, built.parity.tokens.identical)
```

Each takes a progress callback and raises `DragomanError` if an argument is wrong. Paths and options
are checked before PyTorch or ONNX is imported.
"""

from typing import TYPE_CHECKING

from dragoman.errors import DragomanError
from dragoman.lazy import lazy_attributes
from dragoman.optimize.tensorrt.profiles import PositionLimits
from dragoman.optimize.tensorrt.request import EngineOptions, EngineRequest
from dragoman.progress import Progress

from .build import BuiltBundle, ParityFailedError, build, export
from .distill import Distillation, DistillationFailedError, distill
from .optimize import OptimizedBundle, optimize, optimize_onnx
from .report import report
from .sensitivity import sensitivity
from .signatures import SignatureError, sign, verify_signature
from .verify import (
    AnswersVerification,
    Verification,
    verify,
    verify_known_answers,
    write_polygraphy,
)

if TYPE_CHECKING:
    from dragoman.distillation.judging import Judged
    from dragoman.optimize.step_inputs import PolygraphyFiles
    from dragoman.verification.report import Report
    from dragoman.verification.sensitivity import Sensitivity
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            ".distillation.judging": ("Judged",),
            ".optimize.step_inputs": ("PolygraphyFiles",),
            ".verification.report": ("Report",),
            ".verification.sensitivity": ("Sensitivity",),
        },
    )

__all__ = [
    "AnswersVerification",
    "BuiltBundle",
    "Distillation",
    "DistillationFailedError",
    "DragomanError",
    "EngineOptions",
    "EngineRequest",
    "Judged",
    "OptimizedBundle",
    "ParityFailedError",
    "PolygraphyFiles",
    "PositionLimits",
    "Progress",
    "Report",
    "Sensitivity",
    "SignatureError",
    "Verification",
    "build",
    "distill",
    "export",
    "optimize",
    "optimize_onnx",
    "report",
    "sensitivity",
    "sign",
    "verify",
    "verify_known_answers",
    "verify_signature",
    "write_polygraphy",
]


def __dir__() -> list[str]:
    return __all__
