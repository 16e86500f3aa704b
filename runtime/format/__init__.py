"""The bundle: the graph contract, the manifest, the files on disk.

Reading order: contract, model_spec, manifest, validation, bundle, writing.
This package does not depend on backends, tokenizer libraries or audio features.
"""

from typing import TYPE_CHECKING

from dragoman.lazy import lazy_attributes

if TYPE_CHECKING:
    from .contract import Change, GraphSpec, Owner, Slot, TensorSpec
    from .manifest import (
        Adapter,
        BuildRecord,
        Choice,
        EngineReport,
        FileRecord,
        OnnxGraphs,
        Origin,
        PassRecord,
        Profile,
        Range,
        Refusal,
        ShortlistRecord,
        TensorRTEngines,
    )
    from .model_spec import ModelSpec
    from .parity import (
        BeamParity,
        Check,
        Cosines,
        Coverage,
        Distance,
        DistributionParity,
        Divergence,
        OnePassParity,
        OtherChoice,
        Parity,
        RankParity,
        Ranks,
        ReferenceParity,
        ShortlistParity,
        TaskParity,
        TensorParity,
        TokenParity,
        VectorParity,
    )
    from .texts import Prompts, SourceTemplate, Tokenizers
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "contract": ("Change", "GraphSpec", "Owner", "Slot", "TensorSpec"),
            "manifest": (
                *("Adapter", "BuildRecord", "Choice", "EngineReport", "FileRecord", "OnnxGraphs"),
                *("Origin", "PassRecord", "Profile", "Range", "Refusal", "ShortlistRecord"),
                "TensorRTEngines",
            ),
            "model_spec": ("ModelSpec",),
            "parity": (
                *("BeamParity", "Check", "Cosines", "Coverage", "Distance", "DistributionParity"),
                *("Divergence", "OnePassParity", "OtherChoice", "Parity", "RankParity", "Ranks"),
                *("ReferenceParity", "ShortlistParity", "TaskParity", "TensorParity"),
                *("TokenParity", "VectorParity"),
            ),
            "texts": ("Prompts", "SourceTemplate", "Tokenizers"),
        },
    )

__all__ = [
    "Adapter",
    "BeamParity",
    "BuildRecord",
    "Change",
    "Check",
    "Choice",
    "Cosines",
    "Coverage",
    "Distance",
    "DistributionParity",
    "Divergence",
    "EngineReport",
    "FileRecord",
    "GraphSpec",
    "ModelSpec",
    "OnePassParity",
    "OnnxGraphs",
    "Origin",
    "OtherChoice",
    "Owner",
    "Parity",
    "PassRecord",
    "Profile",
    "Prompts",
    "Range",
    "RankParity",
    "Ranks",
    "ReferenceParity",
    "Refusal",
    "ShortlistParity",
    "ShortlistRecord",
    "Slot",
    "SourceTemplate",
    "TaskParity",
    "TensorParity",
    "TensorRTEngines",
    "TensorSpec",
    "TokenParity",
    "Tokenizers",
    "VectorParity",
]
