"""Decodes with CTranslate2, and transcribes with faster-whisper, which is built on it.

Only these are imported, since their memory is measured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from dragoman.errors import DragomanError

from .interface import LANGUAGE, Batch, Generate, Rows, Stages, Transcriber, Way, import_library

SHORTLIST = "vmap.txt"
"""The file of a shortlist in a model's directory, which CTranslate2 then uses."""
Names = Callable[[Iterable[int]], list[str]]


class CTranslate2Peer:
    """A directory that `convert` wrote, loaded by CTranslate2, from token ids to token ids.

    Args:
        compute_type: one of `ctranslate2.get_supported_compute_types(device)`; "default" is the
            closest to the stored weights' type that the device supports
        device: "cpu" or "cuda"
        workers: batches that run at the same time (inter_threads), from as many threads
        names: returns the names of source tokens; None: `source_names`
    """

    def __init__(
        self,
        directory: Path,
        threads: int,
        compute_type: str = "default",
        device: str = "cpu",
        workers: int = 1,
        names: Names | None = None,
    ) -> None:
        self._names = names or source_names
        package = import_library("ctranslate2")
        self._uses_shortlist = (directory / SHORTLIST).exists()
        parallel = {"inter_threads": workers, "intra_threads": threads}
        settings = {"device": device, "compute_type": compute_type, **parallel}
        try:
            self._translator = package.Translator(str(directory), **settings)
        except (RuntimeError, ValueError) as error:
            raise DragomanError(f"CTranslate2 cannot load {directory}: {error}") from error

    @property
    def compute_type(self) -> str:
        """The type of matrix products, which "default" and "auto" do not name."""
        return str(self._translator.compute_type)

    def generate(
        self,
        sources: list[list[int]],
        max_new_tokens: int,
        min_new_tokens: int = 0,
        num_beams: int = 1,
        max_batch_size: int | None = None,
    ) -> list[list[int]]:
        """Decode sources, greedily or with beams; return tokens without start and end token.

        CTranslate2 silently treats ids outside the vocabulary as padding. Batches are of sources of
        similar length; beams are ranked with a length penalty of 1.
        """
        results = self._translator.translate_batch(
            [self._names(source) for source in sources],
            max_batch_size=max_batch_size or len(sources),
            max_input_length=0,
            beam_size=num_beams,
            length_penalty=1,
            max_decoding_length=max_new_tokens,
            min_decoding_length=min_new_tokens,
            use_vmap=self._uses_shortlist,
        )
        best = (result.hypotheses[0] for result in results)
        return [[int(name.removeprefix("t")) for name in names] for names in best]


def load(
    directory: Path, threads: int, *, mode: str, device: str = "cpu", names: Names | None = None
) -> Generate:
    """Load a directory that `convert` wrote; every row gets exactly the requested new tokens."""
    peer = CTranslate2Peer(directory, threads, mode, device, names=names)
    return lambda b: peer.generate(b.sources, b.new_tokens, b.new_tokens, b.num_beams)


def source_names(tokens: Iterable[int]) -> list[str]:
    """Return names of source tokens that no target token has.

    CTranslate2 returns a source such as "end token, any token" untranslated if it knows the names.
    """
    return [f"s{token}" for token in tokens]


def target_names(tokens: Iterable[int]) -> list[str]:
    """Return the names of target tokens."""
    return [f"t{token}" for token in tokens]


def prepare_translator(source: Path, directory: Path, *, mode: str) -> Path:
    """Convert the checkpoint of an encoder-decoder model with CTranslate2's own converter.

    The converter reads a tokenizer, so a copy of the checkpoint gets one whose tokens are named by
    `target_names`, of both sides.
    """
    library = import_library("ctranslate2.converters")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    names = target_names(range(config["vocab_size"]))
    with TemporaryDirectory(dir=directory.parent) as copy:
        for file in source.iterdir():
            (Path(copy) / file.name).symlink_to(file.absolute())
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        for name, field in {"bos": "bos", "eos": "eos", "pad": "pad", "unk": "pad"}.items():
            settings[f"{name}_token"] = f"t{config.get(f'{field}_token_id') or 0}"
        vocabulary = {name: token for token, name in enumerate(names)}
        model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": settings["unk_token"]}
        tokenizer = {"version": "1.0", "added_tokens": [], "model": model}
        for kind, content in {"tokenizer": tokenizer, "tokenizer_config": settings}.items():
            (Path(copy) / f"{kind}.json").write_text(json.dumps(content), encoding="utf-8")
        converter = library.TransformersConverter(copy, low_cpu_mem_usage=True)
        converter.convert(str(directory), quantization=mode)
    return directory


load_translator = partial(load, names=target_names)
"""Loads what `prepare_translator` wrote."""


def prepare_generator(
    source: Path, directory: Path, *, mode: str | None = None, files: Sequence[str] = ()
) -> Path:
    """Convert the checkpoint of a decoder-only model with CTranslate2's converter.

    Args:
        files: of the checkpoint, which are copied
    """
    converters = import_library("ctranslate2.converters")
    settings: dict[str, Any] = {"copy_files": [*files], "low_cpu_mem_usage": True}
    converter = converters.TransformersConverter(str(source), **settings)
    converter.convert(str(directory), quantization=mode)
    return directory


prepare_whisper = partial(prepare_generator, files=("tokenizer.json", "preprocessor_config.json"))
"""Converts the checkpoint of a Whisper model, with what `load_faster_whisper` reads."""


def load_generator(directory: Path, threads: int, *, mode: str) -> Generate:
    """Load what `prepare_generator` wrote; every row gets exactly the requested new tokens."""
    library = import_library("ctranslate2")
    settings = {"compute_type": mode, "inter_threads": 1, "intra_threads": threads}
    generator = library.Generator(str(directory), **settings)
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


def load_faster_whisper(
    directory: Path, threads: int, *, mode: str, way: Way, num_beams: int = 5, workers: int = 1
) -> Transcriber:
    """Load a model into faster-whisper, whose workers transcribe clips of several threads."""
    library = import_library("faster_whisper")
    model = library.WhisperModel(
        str(directory),
        device="cpu",
        compute_type=mode,
        cpu_threads=threads,
        num_workers=workers,
        local_files_only=True,
    )
    options: dict[str, Any] = {"beam_size": num_beams}
    if way == "greedy":
        options = {"beam_size": 1, "best_of": 1, "temperature": 0.0, "without_timestamps": True}
        options["condition_on_previous_text"] = False
    elif way == "together":
        options["batch_size"] = 8

    def transcribe(clip: Path | BinaryIO) -> str:
        called = library.BatchedInferencePipeline(model) if way == "together" else model
        audio = str(clip) if isinstance(clip, Path) else clip
        segments, _ = called.transcribe(audio, language=LANGUAGE, **options)
        return " ".join(segment.text.strip() for segment in segments)

    def stages(clip: Path) -> Stages:
        """Time the stages of `WhisperModel.transcribe` separately, with the same settings."""
        features = model.feature_extractor(library.audio.decode_audio(str(clip)), padding=True)
        window = features[:, : model.feature_extractor.nb_max_frames]
        window = library.audio.pad_or_trim(window)
        vocabulary = model.hf_tokenizer, model.model.is_multilingual
        settings = {"task": "transcribe", "language": LANGUAGE}
        tokenizer = library.tokenizer.Tokenizer(*vocabulary, **settings)
        prompt = model.get_prompt(tokenizer, [], without_timestamps=True)
        started = time.perf_counter()
        encoded = model.encode(window)
        encoded_at = time.perf_counter()
        rules = {"beam_size": 1, "suppress_blank": True, "suppress_tokens": [-1]}
        (result,) = model.model.generate(encoded, [prompt], max_length=448, **rules)
        ended = time.perf_counter()
        tokens = len(result.sequences_ids[0]) + 1
        return Stages(encoded_at - started, ended - encoded_at, tokens)

    return Transcriber(transcribe, stages)
