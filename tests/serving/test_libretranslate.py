"""LibreTranslate's API: texts of several sentences, HTML, and languages that are detected."""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import libretranslatepy
import pytest

from dragoman.runtime import Model, load, translate_document
from dragoman.runtime.documents import NO_ALIGNMENT
from dragoman.runtime.serving.apis import libretranslate
from dragoman.runtime.serving.apis.libretranslate import detected_languages

from ..zoo import prose_bundle
from .conftest import serving

TEXT = "Dr. Smith came.  He left.\r\n\r\n - A house. "
HTML = "<p>The <b>man</b> came.  He &amp; I.</p>\n<pre>a</pre><p>The <b>man</b> came.</p>"
ENGLISH = "In the beginning God created the heaven and the earth."
GERMAN = "Am Anfang schuf Gott Himmel und Erde."
FRENCH = "Au commencement, Dieu créa les cieux et la terre."


@pytest.fixture(scope="module")
def prose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prose_bundle(tmp_path_factory.mktemp("bundles") / "prose")


@pytest.fixture(scope="module")
def model(prose: Path) -> Model:
    return load(prose, threads=1)


@pytest.fixture(scope="module")
def server(prose: Path) -> Iterator[httpx.Client]:
    names = ("prose-en-es", "prose-de-es", "prose-fr-it")
    with serving(dict.fromkeys(names, prose)) as client:
        yield client


@pytest.fixture
def libre(server: httpx.Client) -> Any:
    return libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{server.base_url.port}")


def hide(patch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let packages be missing for the server."""
    find = importlib.util.find_spec
    patch.setattr(
        libretranslate, "find_spec", lambda name: None if name in packages else find(name)
    )


def test_texts_are_split(libre: Any, model: Model) -> None:
    (expected,) = model.generate([TEXT], split=True)
    assert libre.translate(TEXT, "en", "es") == expected.text
    each = model.generate(["Dr. Smith came.", "He left.", "A house."])
    first, second, third = (result.text for result in each)
    assert expected.text == f"{first}  {second}\r\n\r\n - {third} "


def test_the_language_of_the_request_splits(server: httpx.Client, model: Model) -> None:
    text = "Es war am 3. Oktober. Er ging."
    body = {"q": text, "source": "de", "target": "es"}
    (expected,) = model.generate([text], split=True, split_language="de")
    assert server.post("/translate", json=body).json() == {"translatedText": expected.text}
    assert expected != model.generate([text], split=True)[0]


def test_alternatives_of_a_text(server: httpx.Client, model: Model) -> None:
    body = {"q": [TEXT, " "], "source": "en", "target": "es", "alternatives": 2}
    answer = server.post("/translate", json=body).json()
    (expected,) = model.generate([TEXT], split=True, num_beams=3, num_return_sequences=3)
    first, *others = [hypothesis.text for hypothesis in expected.hypotheses]
    assert answer == {"translatedText": [first, " "], "alternatives": [others, []]}


def test_without_the_packages_lines_are_translated(
    libre: Any, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libretranslate, "splitter_is_installed", lambda: False)
    first, last = (r.text for r in model.generate(["Dr. Smith came.  He left.", " - A house. "]))
    assert libre.translate(TEXT, "en", "es") == f"{first}\r\n\r\n{last}"


def test_html(server: httpx.Client, model: Model) -> None:
    body = {"q": HTML, "source": "en", "target": "es", "format": "html"}
    expected = translate_document(model, HTML, "html").text
    assert server.post("/translate", json=body).json() == {"translatedText": expected}
    several = server.post("/translate", data=body | {"q": [HTML, "plain"]}).json()
    plain = model.generate(["plain"])[0].text
    assert several == {"translatedText": [expected, plain]}


LONG = "two three, " * 9
CUT = "1 sentence is too long for the model and translated in parts: at character 0"


@pytest.mark.parametrize("form", ["text", "html"])
def test_sentences_that_are_cut_have_warnings(
    server: httpx.Client, model: Model, form: str
) -> None:
    body = {"q": LONG, "source": "en", "target": "es", "format": form}
    answer = server.post("/translate", json=body).json()
    assert answer == {"translatedText": answer["translatedText"], "warnings": [CUT]}
    several = server.post("/translate", json=body | {"q": ["One.", LONG, "Two."]}).json()
    assert several["warnings"] == [[], [CUT], []]
    assert several["translatedText"][1] == answer["translatedText"]


def test_html_without_alignments_has_a_warning(tmp_path: Path, prose: Path) -> None:
    """As in the library; a text without tags in its sentences has none."""
    bundle = Path(shutil.copytree(prose, tmp_path / "prose"))
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["graphs"]["attention"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    html = "<p>The <b>man</b> came.</p>"
    body = {"q": [html, "<p>One.</p>"], "source": "en", "target": "es", "format": "html"}
    with load(bundle, threads=1) as model, serving({"prose-en-es": bundle}) as client:
        expected = [translate_document(model, text, "html") for text in body["q"]]
        answer = client.post("/translate", json=body).json()
    assert answer["translatedText"] == [each.text for each in expected]
    assert answer["warnings"] == [[NO_ALIGNMENT], []] == [[*each.warnings] for each in expected]


def test_far_too_many_tags_are_refused_at_once(server: httpx.Client) -> None:
    body = {"q": "a<b>b</b>" * 440_000, "source": "en", "target": "es", "format": "html"}
    begun = time.perf_counter()
    answer = server.post("/translate", json=body)
    assert time.perf_counter() - begun < 30
    assert answer.status_code == 400 and answer.json()["error"].startswith("tags: expected at most")
    assert len(answer.json()["error"].splitlines()) == 1


def test_a_request_of_html_has_one_time_limit(prose: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alignments of further documents begin with what is left of it."""
    left: list[float] = []
    align = Model.align

    def noted(self: Model, pairs: Any, **options: Any) -> Any:
        left.append(options["timeout"])
        return align(self, pairs, **options)

    monkeypatch.setattr(Model, "align", noted)
    body = {"q": ["<b>The man</b> came."] * 3, "source": "en", "target": "es", "format": "html"}
    with serving({"prose-en-es": prose}) as client:
        assert client.post("/translate", json=body).status_code == 200
    assert len(left) == 3 and left[0] < 600
    assert left == sorted(left, reverse=True) and len(set(left)) == 3


def test_alternatives_of_html(server: httpx.Client, model: Model) -> None:
    body = {"q": "<p>The <b>man</b> came.</p>", "source": "en", "target": "es", "format": "html"}
    answer = server.post("/translate", json=body | {"alternatives": 1}).json()
    options: dict[str, Any] = {"num_beams": 2, "num_return_sequences": 2}
    (expected,) = model.generate(["The man came."], **options)
    found = [answer["translatedText"], *answer["alternatives"]]
    for html, hypothesis in zip(found, expected.hypotheses, strict=True):
        assert html.count("<b>") == html.count("</b>") == 1
        text = html.replace("<b>", "").replace("</b>", "")
        assert text == f"<p>{hypothesis.text}</p>"


def test_html_without_the_package(server: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "turbohtml", None)
    body = {"q": HTML, "source": "en", "target": "es", "format": "html"}
    answer = server.post("/translate", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"] == (
        "tags: expected the package turbohtml, found none: pip install 'dragoman[html]'"
    )


def test_a_language_is_detected(libre: Any) -> None:
    for text, code in ((ENGLISH, "en"), (GERMAN, "de"), (FRENCH, "fr")):
        first, *others = libre.detect(text)
        assert first["language"] == code and 60 < first["confidence"] <= 100
        assert set(first) == {"confidence", "language"}
        assert isinstance(first["confidence"], float)
        assert {other["language"] for other in others} <= {"en", "de", "fr"}
        confidences = [first["confidence"], *(other["confidence"] for other in others)]
        assert confidences == sorted(confidences, reverse=True)


@pytest.mark.parametrize("text", ["", "1 2 3", "\ud83d"])
def test_a_text_without_a_language_has_one(text: str) -> None:
    found = detected_languages([text], {"en", "de"})
    assert [one["confidence"] for one in found] == pytest.approx([50.0, 50.0], abs=3)


def test_codes_of_models_are_those_of_the_answer() -> None:
    codes = {"eng_Latn", "deu_Latn", "zho_Hans", "nob_Latn", "xx", "tlh"}
    for text, code in ((ENGLISH, "eng_Latn"), ("你好,世界。今天天气很好。", "zho_Hans")):
        assert detected_languages([text], codes)[0]["language"] == code
    norwegian = "Dette er en norsk setning om været i Oslo."
    assert detected_languages([norwegian], codes)[0]["language"] == "nob_Latn"


def test_the_source_is_detected(server: httpx.Client, libre: Any, model: Model) -> None:
    """Among the languages that are translated to the target."""
    for text, code in ((ENGLISH, "en"), (GERMAN, "de")):
        body = {"q": text, "source": "auto", "target": "es"}
        answer = server.post("/translate", json=body).json()
        (expected,) = model.generate([text], split=True, split_language=code)
        assert answer["translatedText"] == expected.text
        assert answer["detectedLanguage"]["language"] == code
        assert server.post("/translate", json=body | {"q": [text, text]}).json() == {
            "translatedText": [expected.text] * 2,
            "detectedLanguage": [answer["detectedLanguage"]] * 2,
        }
    body = {"q": ENGLISH, "target": "it"}
    detected = server.post("/translate", json=body).json()["detectedLanguage"]
    assert detected == {"confidence": 100.0, "language": "fr"}


def test_without_the_detector(
    server: httpx.Client, libre: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, "py3langid")
    expected = (
        "detection of languages: expected the package py3langid, found none: pip install "
        "'dragoman[detect]'"
    )
    for path, body in (("/detect", {"q": "a"}), ("/translate", {"q": "a", "target": "es"})):
        answer = server.post(path, json=body)
        assert (answer.status_code, answer.json()) == (400, {"error": expected})
    answer = server.post("/translate", json={"q": "One.", "target": "it"})
    assert set(answer.json()) == {"translatedText"}  # French is the only language
    assert libre.translate("One.", "en", "es")


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/detect", {}, "q: required field is missing"),
        ("/detect", {"q": ["a"]}, "q: expected"),
        ("/detect", {"q": "a", "source": "en"}, "unknown: source"),
        ("/translate", {"q": "a", "target": "nl"}, "expected languages of a bundle"),
        (
            "/translate",
            {"q": "a" * 4_000_001, "source": "en", "target": "es", "format": "html"},
            "q: expected at most 4,000,000 characters of HTML, found 4,000,001",
        ),
    ],
)
def test_mistakes(server: httpx.Client, path: str, body: dict[str, Any], words: str) -> None:
    answer = server.post(path, json=body)
    assert answer.status_code == 400 and words in answer.json()["error"]


def test_languages(libre: Any) -> None:
    assert libre.languages() == [
        {"code": "de", "name": "de", "targets": ["es"]},
        {"code": "en", "name": "en", "targets": ["es"]},
        {"code": "fr", "name": "fr", "targets": ["it"]},
    ]


def test_other_protocols_split(server: httpx.Client, model: Model) -> None:
    long = f"{TEXT}{'two three, ' * 9}"
    body = {"model": "prose-en-es", "source": long, "split": True, "num_beams": 1}
    (found,) = server.post("/v1/generate", json=body).json()["results"]
    (expected,) = model.generate([long], split=True, num_beams=1)
    assert (found["text"], found["warnings"]) == (expected.text, [*expected.warnings])
    assert found["warnings"]
    answer = server.post("/v1/generate", json=body | {"stream": True})
    assert answer.status_code == 400 and "split: expected no stream" in answer.text
    many = server.post("/v1/generate", json=body | {"source": "a\n" * 1025})
    assert many.status_code == 400
    assert "expected at most 1024 sentences in all, found 1025" in many.text
    outputs = {"source": "a\n" * 600, "num_beams": 2, "num_return_sequences": 2}
    many = server.post("/v1/generate", json=body | outputs)
    assert many.status_code == 400
    assert "expected at most 512 sentences in all with 2 outputs each, found 600" in many.text
