"""The Python API of the commands.

The functions are `export`, `optimize`, `build`, `verify`, `sensitivity`, `report`, `sign`, and
`write_polygraphy`, which implements `inspect --polygraphy`.

```python
from dragoman.api import build
built = build("g2p-en", "bundles/g2p-en", precision="int8")
print(built.bundle.size, built.parity.tokens.identical)
```

Each takes a progress callback, returns a typed result, and raises `DragomanError` if an argument
is wrong. Paths and options are checked before PyTorch or ONNX is imported.
"""

from dragoman.errors import DragomanError
from dragoman.optimize.tensorrt.request import EngineRequest
from dragoman.progress import Progress

from .build import BuiltBundle, ParityFailedError, build, export
from .optimize import OptimizedBundle, optimize, optimize_onnx
from .polygraphy import write_polygraphy
from .report import report
from .sensitivity import sensitivity
from .signatures import SignatureError, sign, verify_signature
from .verify import Verification, verify

__all__ = [
    "BuiltBundle",
    "DragomanError",
    "EngineRequest",
    "OptimizedBundle",
    "ParityFailedError",
    "Progress",
    "SignatureError",
    "Verification",
    "build",
    "export",
    "optimize",
    "optimize_onnx",
    "report",
    "sensitivity",
    "sign",
    "verify",
    "verify_signature",
    "write_polygraphy",
]
