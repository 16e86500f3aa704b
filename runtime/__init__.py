"""What gets deployed: bundles, backends and greedy decoding. Needs neither torch nor onnx.

from dragoman.runtime import load
model = load("bundles/g2p-en", threads=2)
for result in model.generate(["dragoman", "transformer"]):
    print(result.text, result.finish_reason)
"""

from dragoman.errors import DragomanError

from .backends.errors import BackendError, DeviceLostError
from .bundle import Bundle, read_bundle
from .languages import LanguageError, Languages
from .manifest import BundleError, Manifest
from .model import Model, load
from .options import GenerationOptions
from .results import FinishReason, Result, Segment, Token
from .text import RejectedError

__all__ = [
    "BackendError",
    "Bundle",
    "BundleError",
    "DeviceLostError",
    "DragomanError",
    "FinishReason",
    "GenerationOptions",
    "LanguageError",
    "Languages",
    "Manifest",
    "Model",
    "RejectedError",
    "Result",
    "Segment",
    "Token",
    "load",
    "read_bundle",
]
