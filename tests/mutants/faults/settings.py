"""Faults of a manifest: settings that a careless writer drops, mixes up or makes up."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dragoman.runtime.format.manifest import Manifest

from ..editing import EditedBundle
from .fault import BundleFault

Inject = Callable[[EditedBundle], None]
Change = Callable[[Manifest], Manifest]


def _of_generation(**changes: Any) -> Change:
    return lambda manifest: dataclasses.replace(
        manifest, generation=dataclasses.replace(manifest.generation, **changes)
    )


def _of_model(**changes: Any) -> Change:
    return lambda manifest: dataclasses.replace(
        manifest, model=dataclasses.replace(manifest.model, **changes)
    )


def _of_speech(**changes: Any) -> Change:
    def change(manifest: Manifest) -> Manifest:
        assert manifest.speech is not None
        return dataclasses.replace(manifest, speech=dataclasses.replace(manifest.speech, **changes))

    return change


def _of_audio(**changes: Any) -> Change:
    def change(manifest: Manifest) -> Manifest:
        assert manifest.audio is not None
        return dataclasses.replace(manifest, audio=dataclasses.replace(manifest.audio, **changes))

    return change


def _of_manifest(**changes: Any) -> Change:
    return lambda manifest: dataclasses.replace(manifest, **changes)


def _languages_swapped(manifest: Manifest) -> Manifest:
    assert manifest.speech is not None
    languages = dict(manifest.speech.languages)
    languages["de"], languages["fr"] = languages["fr"], languages["de"]
    return _of_speech(languages=languages)(manifest)


def _labels_swapped(manifest: Manifest) -> Manifest:
    assert manifest.head is not None
    first, *others, last = manifest.head.labels
    head = dataclasses.replace(manifest.head, labels=(last, *others, first))
    return dataclasses.replace(manifest, head=head)


def _several_labels(manifest: Manifest) -> Manifest:
    assert manifest.head is not None
    return dataclasses.replace(manifest, head=dataclasses.replace(manifest.head, multi_label=True))


def _prompt_cut(manifest: Manifest) -> Manifest:
    return _of_generation(prompt=manifest.generation.prompt[:-1])(manifest)


def _suppressed_cut(manifest: Manifest) -> Manifest:
    return _of_generation(suppressed_token_ids=manifest.generation.suppressed_token_ids[1:])(
        manifest
    )


def _fault(name: str, change: Change, *bundles: str) -> BundleFault:
    def inject(edited: EditedBundle) -> None:
        before = edited.manifest
        edited.manifest = change(before)
        assert edited.manifest != before, "the fault changes nothing"

    return BundleFault(name, "settings", bundles, inject)


FAULTS: tuple[BundleFault, ...] = (
    _fault(
        "beam search keeps one hypothesis",
        _of_generation(num_beams=1, early_stopping=False),
        "bart cpu fp32",
    ),
    _fault(
        "the length penalty is 1",
        _of_generation(length_penalty=1.0),
        "bart cpu fp32",
        "bart cpu int8",
    ),
    _fault(
        "beam search does not stop early", _of_generation(early_stopping=False), "bart cpu fp32"
    ),
    _fault("n-grams may repeat", _of_generation(no_repeat_ngram_size=0), "bart cpu fp32"),
    _fault(
        "there is no minimum length", _of_generation(min_length=0), "bart cpu fp32", "bart cpu int4"
    ),
    _fault("no first token is forced", _of_generation(forced_first_token_id=None), "bart cpu fp32"),
    _fault(
        "another first token is forced",
        _of_generation(forced_first_token_id=3),
        "bart cpu int8",
        "g2p-en cpu fp32",
    ),
    _fault("no last token is forced", _of_generation(forced_last_token_id=None), "bart cpu fp32"),
    _fault(
        "repetition is penalized",
        _of_generation(repetition_penalty=1.2),
        "gpt2 cpu fp32",
        "g2p-en cpu int8",
    ),
    _fault(
        "a token is suppressed",
        _of_generation(suppressed_token_ids=(24,)),
        "t5 cpu fp32",
        "gpt2 cpu int8",
    ),
    _fault("a token is not suppressed", _suppressed_cut, "whisper cpu fp32"),
    _fault(
        "no first token is suppressed",
        _of_generation(first_suppressed_token_ids=()),
        "whisper cpu fp32",
    ),
    _fault(
        "another token ends outputs",
        _of_generation(end_token_ids=(24,)),
        "g2p-en cpu fp32",
        "gpt2 cpu int8",
    ),
    _fault(
        "a second token ends outputs", _of_generation(end_token_ids=(2, 9)), "bible-en-es cpu fp32"
    ),
    _fault(
        "outputs end after 8 tokens",
        _of_manifest(default_max_new_tokens=8),
        "g2p-en cpu fp32",
        "bart cpu int8",
        "gpt2 cpu int4",
    ),
    _fault(
        "int8 is labelled int4", _of_manifest(precision="int4"), "g2p-en cpu int8", "bart cpu int8"
    ),
    _fault("fp32 is labelled int8", _of_manifest(precision="int8"), "t5 cpu fp32"),
    _fault("fp16 is labelled bf16", _of_manifest(precision="bf16"), "t5 neutral fp16"),
    _fault("the target cpu is labelled neutral", _of_manifest(target="neutral"), "gpt2 cpu fp32"),
    _fault(
        "outputs start with another token",
        _of_model(start_token_id=3),
        "t5 cpu fp32",
        "bart cpu int8",
    ),
    _fault(
        "the model ends outputs with another token",
        _of_model(end_token_id=5),
        "g2p-en cpu fp32",
        "gpt2 cpu int4",
    ),
    _fault("padding is another token", _of_model(pad_token_id=4), "bart cpu fp32"),
    _fault("sources may have 32 tokens", _of_model(max_source_positions=32), "bart cpu fp32"),
    _fault("targets may have 32 tokens", _of_model(max_target_positions=32), "gpt2 cpu fp32"),
    _fault(
        "two labels are swapped",
        _labels_swapped,
        "bert-classifier cpu fp32",
        "bert-classifier neutral fp16",
    ),
    _fault("each label is true or not by itself", _several_labels, "bert-classifier cpu fp32"),
    _fault("two languages are swapped", _languages_swapped, "whisper cpu fp32", "whisper cpu int8"),
    _fault(
        "audio is in English unless stated", _of_speech(default_language="en"), "whisper cpu fp32"
    ),
    _fault(
        "audio is translated unless stated",
        _of_speech(default_task="translate"),
        "whisper cpu fp32",
    ),
    _fault(
        "timestamps begin within 0.1 s",
        _of_speech(max_initial_timestamp_index=5),
        "whisper cpu fp32",
    ),
    _fault("the prompt lacks its last token", _prompt_cut, "whisper cpu int8"),
    _fault("spectra are of 512 samples", _of_audio(n_fft=512), "whisper cpu fp32"),
    _fault("audio is at 8 kHz", _of_audio(sampling_rate=8000, hop=80), "whisper cpu fp32"),
    _fault("other heads align words", _of_generation(alignment_heads=((0, 1),)), "g2p-en cpu fp32"),
)
"""Faults of generation, token ids, labels, languages, audio and what a bundle says it is."""
