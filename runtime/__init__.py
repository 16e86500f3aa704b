"""What is deployed: bundles, backends and decoding. Needs neither torch nor onnx.

from dragoman.runtime import load
model = load("bundles/g2p-en", threads=2)
for result in model.generate(["dragoman", "transformer"]):
    print(result.text, result.finish_reason)
"""

from dragoman.errors import DragomanError

from .backends.errors import BackendError, DeviceLostError
from .decoding.options import GenerationOptions
from .decoding.rejection import RejectedError
from .decoding.results import (
    Alternative,
    FinishReason,
    Hypothesis,
    Result,
    Segment,
    Token,
    UnfinishedError,
)
from .format.bundle import Bundle, read_bundle
from .format.languages import LanguageError, Languages
from .format.manifest import BundleError, Manifest
from .model import Model, load
from .scoring.options import ScoringOptions
from .scoring.results import ScoredPair, perplexity

__all__ = [
    "Alternative",
    "BackendError",
    "Bundle",
    "BundleError",
    "DeviceLostError",
    "DragomanError",
    "FinishReason",
    "GenerationOptions",
    "Hypothesis",
    "LanguageError",
    "Languages",
    "Manifest",
    "Model",
    "RejectedError",
    "Result",
    "ScoredPair",
    "ScoringOptions",
    "Segment",
    "Token",
    "UnfinishedError",
    "load",
    "perplexity",
    "read_bundle",
]
