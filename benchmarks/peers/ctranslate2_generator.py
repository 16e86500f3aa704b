"""CTranslate2 with decoders alone: its own converter of Hugging Face's checkpoints, its
`Generator`.

Nothing that imports torch is imported at the top, because its memory is measured without PyTorch.
"""

from __future__ import annotations

import json
from pathlib import Path

from .interface import Batch, Generate, Rows
from .library import import_library


def prepare(source: Path, directory: Path, *, compute_type: str) -> Path:
    """Convert a checkpoint into a new directory.

    Returns:
        `directory`
    """
    converters = import_library("ctranslate2.converters")
    converter = converters.TransformersConverter(str(source))
    converter.convert(str(directory), quantization=compute_type)
    return directory


def load(directory: Path, threads: int, *, compute_type: str) -> Generate:
    """Load what `prepare` wrote; every row gets exactly the requested new tokens."""
    library = import_library("ctranslate2")
    generator = library.Generator(
        str(directory), compute_type=compute_type, inter_threads=1, intra_threads=threads
    )
    names = json.loads((directory / "vocabulary.json").read_text(encoding="utf-8"))

    def generate(batch: Batch) -> Rows:
        results = generator.generate_batch(
            [[names[token] for token in source] for source in batch.sources],
            max_batch_size=len(batch.sources),
            beam_size=batch.num_beams,
            length_penalty=1,
            min_length=batch.new_tokens,
            max_length=batch.new_tokens,
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in results]

    return generate
