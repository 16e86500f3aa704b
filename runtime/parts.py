"""What a loaded model is made of, by the kind of its bundle."""

from collections.abc import Sequence
from typing import Any

from dragoman.errors import DragomanError

from .arguments import StopCheck
from .attention.alignment import Alignment, SpeechAligner
from .attention.reader import AttentionReader, EncoderAttentionReader
from .backends.interface import Backend
from .encoding.front_end import EncoderFrontEnd
from .format.bundle import Bundle
from .scoring.interface import ScoringOptions
from .scoring.speech import SpeechScorer
from .scoring.texts import TextScorer
from .speech.transcriber import Transcriber
from .texts.front_end import TextFrontEnd
from .texts.shortlist import read_shortlist
from .texts.tokenizer import TextCodec


class Parts:
    """What an open model is made of."""

    front_end: TextFrontEnd | Transcriber
    """Turns inputs into decoding jobs, and their outputs into results."""
    transcriber: Transcriber
    scorer: TextScorer | SpeechScorer
    encoder: EncoderFrontEnd
    """The front end of an encoder-only model, which has no other parts."""
    attention: AttentionReader | EncoderAttentionReader
    aligner: AttentionReader

    def __init__(self, bundle: Bundle, backend: Backend) -> None:
        manifest, directory = bundle.manifest, bundle.directory
        self.backend = backend
        self.codec: TextCodec | None = None
        """Tokenizers of a model with a decoder; None if the bundle has none."""
        self.speech_aligner: SpeechAligner | None = None
        if manifest.head is not None:
            self.encoder = EncoderFrontEnd(manifest, manifest.head, backend, directory)
            self.attention = EncoderAttentionReader(manifest.name, backend, self.encoder)
            return
        if manifest.tokenizers is not None:
            self.codec = TextCodec.of(manifest.tokenizers, directory, manifest.languages)
        if manifest.speech is not None and manifest.audio is not None:
            speech, audio = manifest.speech, manifest.audio
            self.transcriber = Transcriber(manifest, speech, audio, backend, self.codec)
            self.front_end = self.transcriber
            scorer = SpeechScorer(manifest, speech, audio, backend, self.codec)
            self.scorer = scorer
            self.speech_aligner = SpeechAligner(manifest, backend, scorer, self.codec)
        else:
            shortlist = None
            if manifest.shortlist is not None:
                shortlist = read_shortlist(directory / manifest.shortlist.file, manifest.model)
            self.front_end = TextFrontEnd(manifest, backend, self.codec, shortlist)
            self.scorer = TextScorer(manifest, backend, self.front_end, self.codec)
        self.attention = self.aligner = AttentionReader(
            manifest, backend, self.scorer, self.front_end, self.codec
        )

    def alignments(
        self,
        pairs: Sequence[Any],
        options: ScoringOptions,
        check: StopCheck,
        unknown_replaced: bool,
    ) -> list[Alignment]:
        """Align sources and outputs; see `Model.align`."""
        if self.speech_aligner is not None:
            if unknown_replaced:
                raise DragomanError("unknown_replaced: expected False, since audio has no words")
            return self.speech_aligner.alignments(pairs, options, check)
        return self.aligner.alignments(pairs, options, check, unknown_replaced)
