"""The runtime: bundles, backends and decoding. It needs neither torch nor onnx.

from dragoman.runtime import load
model = load("bundles/g2p-en", threads=2)
for result in model.generate(["dragoman", "transformer"]):
    print(result.text, result.finish_reason)
"""

from typing import TYPE_CHECKING

from dragoman.errors import DragomanError
from dragoman.lazy import lazy_attributes
from dragoman.settings.generation import GenerationKeywords, GenerationOptions

from .arguments import (
    AbilityError,
    CancelError,
    CancelEvent,
    DeadlineError,
    Source,
    StoppedError,
)
from .attention.alignment import Alignment
from .attention.reader import Attention
from .backends.interface import BackendError, ClosedModelError, DeviceLostError
from .decoding.results import (
    Alternative,
    FinishReason,
    Hypothesis,
    LiveUpdate,
    Quality,
    RejectedError,
    Result,
    Segment,
    SpokenLanguage,
    Token,
    TranscriptUpdate,
    UnfinishedError,
    Word,
)
from .documents import TranslatedDocument, translate_document
from .encoding.results import (
    Answer,
    Candidate,
    Classification,
    Filling,
    RankedDocument,
    ScoredLabel,
    Tag,
    Tagging,
)
from .encoding.tokenizer import ReadingKeywords
from .format.bundle import Bundle, read_bundle
from .format.manifest import BundleError, Manifest
from .format.texts import LanguageError, Languages
from .loading import KnownAnswersError, load
from .model import Model
from .scoring.interface import ScoredPair, ScoringKeywords, ScoringOptions, perplexity
from .texts.tokenizer import TextStream

if TYPE_CHECKING:
    from .serving.async_model import AsyncModel
    from .serving.engine.request_queue import OverloadedError
else:  # what needs asyncio
    __getattr__ = lazy_attributes(
        __name__,
        {
            "serving.async_model": ("AsyncModel",),
            "serving.engine.request_queue": ("OverloadedError",),
        },
    )

__all__ = [
    "AbilityError",
    "Alignment",
    "Alternative",
    "Answer",
    "AsyncModel",
    "Attention",
    "BackendError",
    "Bundle",
    "BundleError",
    "CancelError",
    "CancelEvent",
    "Candidate",
    "Classification",
    "ClosedModelError",
    "DeadlineError",
    "DeviceLostError",
    "DragomanError",
    "Filling",
    "FinishReason",
    "GenerationKeywords",
    "GenerationOptions",
    "Hypothesis",
    "KnownAnswersError",
    "LanguageError",
    "Languages",
    "LiveUpdate",
    "Manifest",
    "Model",
    "OverloadedError",
    "Quality",
    "RankedDocument",
    "ReadingKeywords",
    "RejectedError",
    "Result",
    "ScoredLabel",
    "ScoredPair",
    "ScoringKeywords",
    "ScoringOptions",
    "Segment",
    "Source",
    "SpokenLanguage",
    "StoppedError",
    "Tag",
    "Tagging",
    "TextStream",
    "Token",
    "TranscriptUpdate",
    "TranslatedDocument",
    "UnfinishedError",
    "Word",
    "load",
    "perplexity",
    "read_bundle",
    "translate_document",
]


def __dir__() -> list[str]:
    return __all__
