"""Dragoman takes a trained Transformer from PyTorch to deployment.

```python
import dragoman

dragoman.build("g2p-en", "bundles/g2p-en", precision="int8")
with dragoman.load("bundles/g2p-en") as model:
    print(model.generate(["dragoman"])[0].text)
```

`build` and `verify` are those of `dragoman.api`, `load` and `read_bundle` those of
`dragoman.runtime`. Each is imported on first use.
"""

import os
from typing import TYPE_CHECKING

from .lazy import lazy_attributes

if TYPE_CHECKING:
    from .api.build import build
    from .api.verify import verify
    from .errors import DragomanError
    from .runtime import load, read_bundle
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "api": ("build", "verify"),
            "errors": ("DragomanError",),
            "runtime": ("load", "read_bundle"),
        },
    )

# ONNX Runtime from 1.29 on sends telemetry unless this is set before it is imported
# (microsoft/onnxruntime, pull request 27379). Who wants it sets 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.1.0"

__all__ = ["DragomanError", "__version__", "build", "load", "read_bundle", "verify"]


def __dir__() -> list[str]:
    return __all__
