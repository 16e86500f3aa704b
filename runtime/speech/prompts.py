"""Prompts of speech models: language, task and timestamps (Radford et al. 2022, section 2.3)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dragoman.errors import DragomanError, shown
from dragoman.settings.generation import GenerationOptions
from dragoman.settings.speech import LanguageOptions, SpeechTokens

from ..format.manifest import Manifest

# Whisper's languages (appendix E) by ISO 639 code.
_NAMES = """
af=afrikaans; am=amharic; ar=arabic; as=assamese; az=azerbaijani; ba=bashkir; be=belarusian;
bg=bulgarian; bn=bengali; bo=tibetan; br=breton; bs=bosnian; ca=catalan,valencian; cs=czech;
cy=welsh; da=danish; de=german; el=greek; en=english; es=spanish,castilian; et=estonian;
eu=basque; fa=persian; fi=finnish; fo=faroese; fr=french; gl=galician; gu=gujarati; ha=hausa;
haw=hawaiian; he=hebrew; hi=hindi; hr=croatian; ht=haitian creole,haitian; hu=hungarian;
hy=armenian; id=indonesian; is=icelandic; it=italian; ja=japanese; jw=javanese; ka=georgian;
kk=kazakh; km=khmer; kn=kannada; ko=korean; la=latin; lb=luxembourgish,letzeburgesch;
ln=lingala; lo=lao; lt=lithuanian; lv=latvian; mg=malagasy; mi=maori; mk=macedonian;
ml=malayalam; mn=mongolian; mr=marathi; ms=malay; mt=maltese; my=myanmar,burmese; ne=nepali;
nl=dutch,flemish; nn=nynorsk; no=norwegian; oc=occitan; pa=punjabi,panjabi; pl=polish;
ps=pashto,pushto; pt=portuguese; ro=romanian,moldavian,moldovan; ru=russian; sa=sanskrit;
sd=sindhi; si=sinhala,sinhalese; sk=slovak; sl=slovenian; sn=shona; so=somali; sq=albanian;
sr=serbian; su=sundanese; sv=swedish; sw=swahili; ta=tamil; te=telugu; tg=tajik; th=thai;
tk=turkmen; tl=tagalog; tr=turkish; tt=tatar; uk=ukrainian; ur=urdu; uz=uzbek; vi=vietnamese;
yi=yiddish; yo=yoruba; yue=cantonese; zh=chinese,mandarin
"""

CODES: dict[str, str] = {
    name: code
    for entry in _NAMES.replace("\n", " ").split(";")
    for code, _, names in [entry.strip().partition("=")]
    for name in names.split(",")
}
"""Name in lower case -> code."""


DETECTED = "auto"
"""The language to request from a model that should detect it."""
ENGLISH_ONLY = {"language": "en", "task": "transcribe"}
"""What Whisper's models without languages and tasks do: requesting it changes nothing."""


def language_code(name: str) -> str:
    """Return the code of a language's name, code or Whisper token, ignoring case."""
    folded = name.strip().lower().removeprefix("<|").removesuffix("|>")
    return CODES.get(folded, folded)


def language_name(code: str) -> str:
    """Return the English name of a code; the code itself if the name is unknown."""
    return next((name for name, known in CODES.items() if known == code), code)


@dataclass(frozen=True)
class PromptRequest:
    """The requested language, task and timestamps."""

    language: str | None = None
    """Language code; "auto": the most probable language; None: the bundle's default, or the most
    probable language."""
    task: str | None = None
    """Task; None: see `SpeechTokens.default_task`."""
    timestamps: bool = False

    @classmethod
    def of(cls, options: LanguageOptions, speech: SpeechTokens) -> PromptRequest:
        """Create the request from the options of a call."""
        name = options.language
        language = None if name is None else language_code(name)
        timestamps = options.timestamps
        if timestamps is None:
            timestamps = speech.default_timestamps
        request = cls(language, options.task, timestamps)
        request.check(speech)
        return request

    def check(self, speech: SpeechTokens) -> None:
        """Check that the model knows the language, the task and timestamps."""
        problems = []
        language = None if self.language == DETECTED else self.language
        for name, value, known in (
            ("language", language, speech.languages),
            ("task", self.task, speech.tasks),
        ):
            if value is not None and not known and value != ENGLISH_ONLY[name]:
                problems.append(
                    f"{name}: expected {ENGLISH_ONLY[name]} or none, since this model transcribes "
                    f"English only; found {shown(value)}"
                )
            elif known and value is not None and value not in known:
                problems.append(
                    f"{name}: expected one of {', '.join(sorted(known))}, found {shown(value)}"
                )
        if self.timestamps and speech.no_timestamps_token_id is None:
            problems.append("timestamps: expected none, this model has no timestamp tokens")
        if problems:
            raise DragomanError(problems=problems)

    def of_texts(self, speech: SpeechTokens) -> PromptRequest:
        """Return the request of a text without timestamps: it names a task."""
        task = self.task or speech.default_task
        if task is None and "transcribe" in speech.tasks:
            task = "transcribe"
        return dataclasses.replace(self, task=task, timestamps=False)

    def language_token(self, speech: SpeechTokens) -> int | None:
        """Return the language token; None if there is none or it is detected."""
        code = self.language or speech.default_language
        if code is None or code == DETECTED or not speech.languages:
            return None
        return speech.languages[code]

    def instructions(self, speech: SpeechTokens) -> tuple[int, ...]:
        """Return the prompt tokens after the language, as in Hugging Face's `generate`."""
        task = self.task or speech.default_task
        named = self.language_token(speech) is not None
        if task is None and named and "transcribe" in speech.tasks:
            task = "transcribe"
        tokens = [] if task is None or not speech.tasks else [speech.tasks[task]]
        if not self.timestamps and speech.no_timestamps_token_id is not None:
            tokens.append(speech.no_timestamps_token_id)
        return tuple(tokens)


def prompt_options(manifest: Manifest) -> GenerationOptions:
    """Return the options of `Model.generate` that produce the prompt of the manifest."""
    if manifest.speech is None:
        return GenerationOptions()
    prompt = manifest.generation.prompt
    return GenerationOptions(
        language=_name_in(manifest.speech.languages, prompt),
        task=_name_in(manifest.speech.tasks, prompt),
        timestamps=False,
    )


def greedy_options(manifest: Manifest) -> GenerationOptions:
    """Return the options of `prompt_options` with greedy search."""
    return prompt_options(manifest).replace(num_beams=1, do_sample=False)


def _name_in(tokens: dict[str, int], prompt: tuple[int, ...]) -> str | None:
    return next((name for name, token in tokens.items() if token in prompt), None)
