"""Each protocol is tested with its own client. Completions have a file of their own."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import libretranslatepy
import numpy as np
import openai
import pytest
import soundfile
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from dragoman.runtime import Model

from .conftest import serving

Models = Callable[[str], Model]
TEXTS = ["dragoman", "a", "interpreters"]


@pytest.fixture(scope="module")
def server(bundle: Callable[[str], Path]) -> Iterator[httpx.Client]:
    """The translator is called after its languages."""
    names = {"letters-en-xx": "letters", "vectors": "vectors", "speech": "speech"}
    directories = {name: bundle(of) for name, of in names.items()} | {"verses": bundle("verses")}
    with serving(directories) as client:
        yield client


# KServe v2


@pytest.fixture
def kserve(server: httpx.Client) -> Iterator[Any]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.base_url.port}") as client:
        yield client


def texts(values: list[str], *, binary: bool = True) -> Any:
    tensor = triton.InferInput("text", [len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array(values, object), binary_data=binary)
    return tensor


def test_kserve_metadata(kserve: Any) -> None:
    assert kserve.is_server_live()
    assert kserve.is_server_ready()
    assert kserve.is_model_ready("vectors")
    assert kserve.is_model_ready("vectors", "1")
    assert kserve.get_server_metadata()["name"] == "dragoman"
    assert kserve.get_model_metadata("vectors")["outputs"] == [
        {"name": "embedding", "datatype": "FP32", "shape": [-1, 24]}
    ]
    index = {model["name"]: model["state"] for model in kserve.get_model_repository_index()}
    assert index == dict.fromkeys(["letters-en-xx", "vectors", "speech", "verses"], "READY")
    with pytest.raises(InferenceServerException, match="found 'nobody'"):
        kserve.get_model_metadata("nobody")


@pytest.mark.parametrize("binary", [True, False])
def test_kserve_texts(kserve: Any, model: Models, binary: bool) -> None:
    """Both forms of tensors, both ways."""
    outputs = [triton.InferRequestedOutput(n, binary_data=binary) for n in ("text", "score")]
    answer = kserve.infer(
        "letters-en-xx",
        [texts(TEXTS, binary=binary)],
        outputs=outputs,
        request_id="7",
        parameters={"num_beams": 2},
    )
    expected = model("letters").generate(TEXTS, num_beams=2)
    found = [v.decode() if binary else v for v in answer.as_numpy("text").tolist()]
    assert found == [result.text for result in expected]
    np.testing.assert_array_equal(
        answer.as_numpy("score"), np.array([r.score for r in expected], np.float32)
    )
    assert answer.get_response()["id"] == "7"
    assert answer.as_numpy("log_probability") is None


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_kserve_compressed_requests(kserve: Any, model: Models, algorithm: str) -> None:
    answer = kserve.infer(
        "letters-en-xx",
        [texts(TEXTS)],
        request_compression_algorithm=algorithm,
        response_compression_algorithm=algorithm,
    )
    found = [text.decode() for text in answer.as_numpy("text").tolist()]
    assert found == [result.text for result in model("letters").generate(TEXTS)]


def test_kserve_embeddings_and_speech(kserve: Any, model: Models) -> None:
    answer = kserve.infer("vectors", [texts(["the man eats", "paris"])])
    np.testing.assert_array_equal(
        answer.as_numpy("embedding"), model("vectors").encode(["the man eats", "paris"])
    )
    tensor = triton.InferInput("audio", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([wav(NOISE)], object))
    (found,) = kserve.infer("speech", [tensor]).as_numpy("text").tolist()
    assert found.decode() == model("speech").generate([NOISE])[0].text


def test_kserve_mistakes(kserve: Any) -> None:
    with pytest.raises(InferenceServerException, match="unknown: beams"):
        kserve.infer("letters-en-xx", [texts(TEXTS)], parameters={"beams": 2})
    with pytest.raises(InferenceServerException, match=r"1: .*expected at most 32"):
        kserve.infer("letters-en-xx", [texts(["a", "x" * 99])])
    wrong = triton.InferInput("text", [1], "FP32")
    wrong.set_data_from_numpy(np.zeros(1, np.float32))
    with pytest.raises(InferenceServerException, match="text: expected BYTES, found FP32"):
        kserve.infer("letters-en-xx", [wrong])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [2]}, "expected as many values as shape"),
        ({"shape": "x"}, "expected a shape"),
        ({"datatype": "TEXT"}, "expected a datatype of"),
        ({"data": [1]}, "expected strings"),
        ({"data": None}, "expected data, a list"),
        ({"parameters": {"binary_data_size": 9}}, "expected 9 bytes of binary data, found 0"),
        ({"name": 1}, "expected a name"),
    ],
)
def test_kserve_malformed_tensors(server: httpx.Client, change: dict[str, Any], words: str) -> None:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["a"]} | change
    answer = server.post("/v2/models/letters-en-xx/infer", json={"inputs": [tensor]})
    assert answer.status_code == 400
    assert words in answer.json()["error"]


# OpenAI

NOISE = np.random.default_rng(3).uniform(-0.4, 0.4, 40_000).astype(np.float32)


def wav(samples: Any, rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


@pytest.fixture
def client(server: httpx.Client) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{server.base_url.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none needed", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names == ["letters-en-xx", "vectors", "speech", "verses"]
    assert client.models.retrieve("verses").id == "verses"


def test_embeddings(client: openai.OpenAI, model: Models) -> None:
    """The client asks for base64 and decodes it; floats as JSON are the same."""
    asked = ["the man eats", "paris is in france"]
    expected = model("vectors").encode(asked)
    forms: list[dict[str, Any]] = [{}, {"encoding_format": "float"}]
    for options in forms:
        answer = client.embeddings.create(model="vectors", input=asked, **options)
        np.testing.assert_allclose([d.embedding for d in answer.data], expected, rtol=1e-6)
    assert answer.usage.prompt_tokens == sum(len(model("vectors").tokenize(t)) for t in asked)
    single = client.embeddings.create(model="vectors", input=asked[0])
    np.testing.assert_allclose(single.data[0].embedding, expected[0], rtol=1e-6)
    with pytest.raises(openai.BadRequestError, match="dimensions: expected 1 to 24, found 25"):
        client.embeddings.create(model="vectors", input="a", dimensions=25)
    short = client.embeddings.create(model="vectors", input="a", dimensions=3)
    np.testing.assert_allclose(
        short.data[0].embedding, model("vectors").encode(["a"], dimensions=3)[0], rtol=1e-6
    )
    with pytest.raises(openai.BadRequestError, match=r"input 1: .*expected at most 24"):
        client.embeddings.create(model="vectors", input=["a", "x" * 99])
    with pytest.raises(openai.NotFoundError, match="found 'nobody'"):
        client.embeddings.create(model="nobody", input="a")


@pytest.mark.parametrize(
    "ids", [[1820, 893], [[1820, 893], [32, 9]], [["a"]], ["the man", [2, 9]], [[]], [2, "a"]]
)
def test_embeddings_of_ids_of_another_tokenizer_are_refused(
    client: openai.OpenAI, ids: Any
) -> None:
    """LangChain sends those of tiktoken by default; small ones are in any vocabulary."""
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False") as caught:
        client.embeddings.create(model="vectors", input=ids)
    assert "--allow-token-ids" in caught.value.message
    with pytest.raises(openai.BadRequestError, match="input: expected texts, found None"):
        client.embeddings.create(model="vectors", input=[None])  # type: ignore[arg-type]


def test_embeddings_of_ids_of_the_model_are_an_option(
    bundle: Callable[[str], Path], model: Models
) -> None:
    ids = list(map(model("vectors").tokenize, ["the man eats", "paris"]))
    with serving({"vectors": bundle("vectors")}, allow_token_ids=True) as server:
        for given, expected in ((ids, ids), (ids[0], ids[:1])):
            body = {"model": "vectors", "input": given}
            found = server.post("/v1/embeddings", json=body).json()
            np.testing.assert_allclose(
                [d["embedding"] for d in found["data"]],
                model("vectors").encode(expected),
                rtol=1e-6,
            )


def transcribe(client: openai.OpenAI, **options: Any) -> Any:
    file = ("noise.wav", wav(NOISE))
    return client.audio.transcriptions.create(file=file, model="speech", **options)


def test_transcriptions(client: openai.OpenAI, model: Models) -> None:
    (plain,) = model("speech").generate([NOISE], timestamps=False, task="transcribe")
    (timed,) = model("speech").generate([NOISE], timestamps=True, task="transcribe")
    assert plain.text is not None
    assert timed.segments is not None
    assert transcribe(client).text == plain.text.strip()
    assert transcribe(client, response_format="text") == plain.text.strip() + "\n"
    verbose = transcribe(
        client, response_format="verbose_json", timestamp_granularities=["segment"]
    )
    assert [(s.start, s.end, s.text) for s in verbose.segments] == [
        (round(s.start, 3), round(s.end, 3), s.text) for s in timed.segments
    ]
    assert verbose.duration == 2.5
    assert verbose.language in ("english", "german", "french", "hawaiian")
    srt = transcribe(client, response_format="srt")
    assert srt.startswith("1\n00:00:0")
    assert srt.count("-->") == len(timed.segments)
    assert transcribe(client, response_format="vtt").startswith("WEBVTT\n\n00:00:0")
    (words,) = model("speech").generate([NOISE], word_timestamps=True, task="transcribe")
    assert words.segments is not None
    spoken = transcribe(
        client, response_format="verbose_json", timestamp_granularities=["word", "segment"]
    )
    assert [(w.word, w.start, w.end) for w in spoken.words] == [
        (w.text.strip(), round(w.start, 3), round(w.end, 3))
        for s in words.segments
        for w in s.words or ()
    ]
    assert [s.start for s in spoken.segments] == [s.start for s in words.segments]
    (judged,) = model("speech").generate(
        [NOISE], timestamps=True, fallback=True, initial_prompt="w5", task="transcribe"
    )
    found = transcribe(
        client, prompt="w5", extra_body={"fallback": "true"}, response_format="verbose_json"
    )
    assert [(s.text, s.avg_logprob, s.no_speech_prob, s.temperature) for s in found.segments] == [
        (
            s.text,
            s.quality.average_log_probability,
            s.quality.no_speech_probability,
            s.quality.temperature,
        )
        for s in judged.segments or ()
        if s.quality
    ]
    silent = transcribe(client, extra_body={"vad": "true"}, response_format="verbose_json")
    assert (silent.text, silent.duration, silent.segments) == ("", 2.5, [])  # noise is no speech
    german = transcribe(client, language="de", response_format="verbose_json")
    assert german.language == "german"


@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # the client's own method
def test_translations(client: openai.OpenAI, model: Models) -> None:
    (expected,) = model("speech").generate([NOISE], task="translate", timestamps=False)
    answer = client.audio.translations.create(file=("a.wav", wav(NOISE)), model="speech")
    assert expected.text is not None
    assert answer.text == expected.text.strip()


def test_transcription_mistakes(client: openai.OpenAI) -> None:
    for options, words in (
        ({"response_format": "verbose_json", "timestamp_granularities": ["letter"]}, "or word"),
        ({"timestamp_granularities": ["segment"]}, "expected response_format verbose_json"),
        ({"language": "xx"}, "language: expected one of"),
        ({"temperature": 3.0, "extra_body": {"fallback": "true"}}, "expected no do_sample"),
        ({"response_format": "png"}, "response_format: expected one of"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            transcribe(client, **options)
    with pytest.raises(openai.BadRequestError, match="expected an audio file, intact"):
        client.audio.transcriptions.create(file=("a.wav", b"no audio"), model="speech")
    with pytest.raises(openai.BadRequestError, match="is not a speech model"):
        client.audio.transcriptions.create(file=("a.wav", wav(NOISE)), model="vectors")


# LibreTranslate


@pytest.fixture
def libre(server: httpx.Client) -> Any:
    return libretranslatepy.LibreTranslateAPI(f"http://127.0.0.1:{server.base_url.port}")


def test_libretranslate(libre: Any, server: httpx.Client, model: Models) -> None:
    assert libre.languages() == [{"code": "en", "name": "en", "targets": ["xx"]}]
    expected = model("letters").generate(["dragoman"])[0].text
    assert libre.translate("dragoman", "en", "xx") == expected
    assert libre.translate("dragoman", "auto", "xx") == expected


def test_libretranslate_several_texts_and_alternatives(server: httpx.Client, model: Models) -> None:
    body = {"q": TEXTS, "source": "en", "target": "xx", "alternatives": 2}
    answer = server.post("/translate", json=body).json()
    expected = model("letters").generate(TEXTS, num_beams=3, num_return_sequences=3)
    assert answer["translatedText"] == [result.text for result in expected]
    assert answer["alternatives"] == [[h.text for h in r.hypotheses[1:]] for r in expected]


@pytest.mark.parametrize(
    "text",
    [
        *("dragoman\na\n\ninterpreters", "\n\na", "a\n", "\n", "", " \t", "a\r\n\r\nit", "a\rit"),
        *("a\n \u3000\nit\n\n\n", "it\u2028a\u2029", "a\na\na"),
    ],
)
def test_libretranslate_keeps_lines(
    libre: Any, server: httpx.Client, model: Models, text: str
) -> None:
    """As many lines as the text has, each as it is translated alone; blank ones as they are."""
    breaks = re.findall(r"\r\n|[\n\r\u2028\u2029]", text)
    lines = re.split(r"\r\n|[\n\r\u2028\u2029]", text)
    alone = {
        line: [h.text or "" for h in result.hypotheses]
        for line in lines
        if line.strip()
        for result in model("letters").generate([line], num_beams=3, num_return_sequences=3)
    }

    def translated(rank: int) -> str:
        found = [alone[line][rank] if line in alone else line for line in lines]
        return "".join(map("".join, zip(found, [*breaks, ""], strict=True)))

    body = {"q": [text, "a", text], "source": "en", "target": "xx", "alternatives": 2}
    found = server.post("/translate", json=body).json()
    assert found["translatedText"] == [translated(0), found["translatedText"][1], translated(0)]
    ranks = [1, 2] if alone else []
    assert found["alternatives"][0] == found["alternatives"][2] == list(map(translated, ranks))
    assert server.post("/translate", data=body | {"q": text}).json() == {
        "translatedText": translated(0),
        "alternatives": list(map(translated, ranks)),
    }
    greedy = model("letters").generate([line for line in lines if line in alone])
    texts = iter([result.text or "" for result in greedy])
    expected = [next(texts) if line in alone else line for line in lines]
    found = libre.translate(text, "en", "xx")
    assert found == "".join(map("".join, zip(expected, [*breaks, ""], strict=True)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": "a\n" * 1025}, "expected at most 1024 sentences in all, found 1025"),
        ({"target": "de"}, "expected languages of a bundle"),
        ({"format": "pdf"}, "format: expected text or html"),
        ({"q": "<p>a</p>" * 1025, "format": "html"}, "q: expected at most 1024 sentences"),
        ({"q": "<b>" * 999, "format": "html"}, "tags: expected at most 200 elements within"),
        ({"targets": "de"}, "unknown: targets; the nearest is target"),
        ({"q": None}, "q: required field is missing"),
        ({"alternatives": 99}, "alternatives: expected 0 to 16"),
        ({"alternatives": "9" * 5000}, "alternatives: expected 0 to 16"),
        ({"model": "speech"}, "model: expected a translation model, speech is another"),
        ({"q": "a1"}, "unknown to this model: '1'"),
    ],
)
def test_libretranslate_mistakes(server: httpx.Client, change: dict[str, Any], words: str) -> None:
    answer = server.post("/translate", json={"q": "a", "source": "en", "target": "xx"} | change)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


@pytest.mark.parametrize("encoding", ["utf-7", "undefined"])
def test_libretranslate_forms_in_other_encodings(server: httpx.Client, encoding: str) -> None:
    """A form may name any encoding that Python has, with lone surrogates and what always fails."""
    head = b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\n'
    kind = f"multipart/form-data; boundary=b; charset={encoding}"
    answer = server.post(
        "/translate", content=head + b"+2AA-\r\n--b--\r\n", headers={"content-type": kind}
    )
    assert answer.status_code == 400
    assert "expected a form, of texts in UTF-8" in answer.json()["error"]
