"""What a bundle and its oracle are compared on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.runtime.decoding.batching import Encodable

from .metrics import Decode, Task
from .reference_file import References
from .sources import EncoderLine


@dataclass(frozen=True)
class ParityInputs:
    """What to compare on.

    Attributes:
        description: for the record
        sources: source token ids, at least one each, or features [mel bins, frames]
        origins: where people find each source, such as "held_out.tsv, line 17"; none: by number
        texts: the texts of the sources, which the bundle's own tokenizer must turn into them
        lines: the same of an encoder alone, whose texts may be pairs, with all that its tokenizer
            says of them
        decode: the checkpoint's tokenizer of outputs; None: its outputs are no texts
        task: what outputs are judged by, if there are references
        references: sources with targets that are right, whose probability is compared
        source_language, target_language: of texts, for a multilingual model; None: see
            `sources.assumed_language` and `oracle.oracle_for`
        random: whether the sources are random, and say nothing about quality
        remark: what the record says beside the description; "": nothing
    """

    description: str
    sources: Sequence[Encodable]
    origins: Sequence[str] = ()
    texts: list[str] | None = None
    decode: Decode | None = None
    task: Task | None = None
    source_language: str | None = None
    target_language: str | None = None
    references: References | None = None
    random: bool = False
    lines: Sequence[EncoderLine] | None = None
    remark: str = ""

    @property
    def recorded(self) -> str:
        """What the record of parity says of them."""
        return "; ".join(text for text in (self.description, self.remark) if text)
