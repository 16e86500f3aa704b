"""The runtime: bundles, backends and decoding. It needs neither torch nor onnx.

from dragoman.runtime import load
model = load("bundles/g2p-en", threads=2)
for result in model.generate(["dragoman", "transformer"]):
    print(result.text, result.finish_reason)
"""

from dragoman.errors import DragomanError
from dragoman.settings.generation import GenerationOptions

from .arguments import AbilityError
from .attention.alignment import Alignment
from .attention.maps import Attention
from .backends.interface import BackendError, DeviceLostError
from .decoding.results import (
    Alternative,
    FinishReason,
    Hypothesis,
    RejectedError,
    Result,
    Segment,
    Token,
    UnfinishedError,
)
from .encoding.results import (
    Answer,
    Candidate,
    Classification,
    Filling,
    ScoredLabel,
    Tag,
    Tagging,
)
from .format.bundle import Bundle, read_bundle
from .format.manifest import BundleError, Manifest
from .format.texts import LanguageError, Languages
from .loading import load
from .model import Model
from .scoring.options import ScoringOptions
from .scoring.results import ScoredPair, perplexity

__all__ = [
    "AbilityError",
    "Alignment",
    "Alternative",
    "Answer",
    "Attention",
    "BackendError",
    "Bundle",
    "BundleError",
    "Candidate",
    "Classification",
    "DeviceLostError",
    "DragomanError",
    "Filling",
    "FinishReason",
    "GenerationOptions",
    "Hypothesis",
    "LanguageError",
    "Languages",
    "Manifest",
    "Model",
    "RejectedError",
    "Result",
    "ScoredLabel",
    "ScoredPair",
    "ScoringOptions",
    "Segment",
    "Tag",
    "Tagging",
    "Token",
    "UnfinishedError",
    "load",
    "perplexity",
    "read_bundle",
]
