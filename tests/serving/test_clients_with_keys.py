"""Clients of every protocol, with a key that is known and with another one; and files of keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx
import libretranslatepy
import numpy as np
import openai
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from dragoman.errors import DragomanError
from dragoman.runtime.serving.clients import read_keys

from .conftest import serving

KEYS = ("right", "wrong")
REFUSED = "expected an API key as a bearer token, found no valid key"


@pytest.fixture(scope="module")
def address(bundle: Callable[[str], Path]) -> Iterator[str]:
    """Of a server that answers those who have the first key."""
    with serving({"letters-en-xx": bundle("letters")}, api_keys=KEYS[:1]) as client:
        yield f"127.0.0.1:{client.base_url.port}"


def test_kserve(address: str) -> None:
    tensor = triton.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array(["dragoman"], object))
    right, wrong = ({"Authorization": f"Bearer {key}"} for key in KEYS)
    with triton.InferenceServerClient(address) as client:
        assert client.infer("letters-en-xx", [tensor], headers=right).as_numpy("text") is not None
        for headers in (wrong, {}):
            with pytest.raises(InferenceServerException, match=REFUSED) as caught:
                client.infer("letters-en-xx", [tensor], headers=headers)
            assert caught.value.status() == "401"
            assert caught.value.message() == REFUSED


def ask_openai(client: openai.OpenAI) -> list[Callable[[], Any]]:
    """One request of each kind."""
    asked: dict[str, Any] = {"model": "letters-en-xx"}
    return [
        client.models.list,
        lambda: client.models.retrieve("letters-en-xx"),
        lambda: client.embeddings.create(input="a", **asked),
        lambda: client.completions.create(prompt="a", **asked),
        lambda: client.completions.create(prompt="a", stream=True, **asked),
        lambda: client.audio.transcriptions.create(file=("a.wav", b"a"), **asked),
    ]


def test_openai(address: str) -> None:
    url = f"http://{address}/v1"
    with openai.OpenAI(base_url=url, api_key=KEYS[0], max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["letters-en-xx"]
    with openai.OpenAI(base_url=url, api_key=KEYS[1], max_retries=0) as client:
        for ask in ask_openai(client):
            with pytest.raises(openai.AuthenticationError, match=REFUSED) as caught:
                ask()
            assert caught.value.body == {
                "message": REFUSED,
                "type": "authentication_error",
                "param": None,
                "code": "unauthorized",
            }


def test_libretranslate(address: str) -> None:
    right, wrong = (libretranslatepy.LibreTranslateAPI(f"http://{address}", key) for key in KEYS)
    assert right.languages()[0]["code"] == "en"
    assert isinstance(right.translate("dragoman", "en", "xx"), str)
    for ask in (wrong.languages, lambda: wrong.translate("dragoman", "en", "xx")):
        with pytest.raises(HTTPError) as caught:
            ask()
        assert caught.value.code == 401
        assert json.load(caught.value) == {"error": REFUSED}


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/encode", "/v1/bundles", "/metrics", "/x"])
def test_other_paths(address: str, path: str) -> None:
    answer = httpx.post(f"http://{address}{path}", headers={"Authorization": "Bearer wrong"})
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.json() == {"error": REFUSED, "code": "unauthorized"}


def test_a_file_of_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the first team\n\n first~key! \nsecond key\n", encoding="utf-8")
    assert read_keys(file) == ("first~key!", "second key")


@pytest.mark.parametrize("key", ["kéy", "ключ", "ke\ty", "\ufeffkey"])
def test_a_key_that_no_header_can_hold_is_refused(tmp_path: Path, key: str) -> None:
    """The key itself is not shown: what is printed may be logged."""
    file = tmp_path / "keys"
    file.write_text(f"# keys\nfirst\n{key}\n", encoding="utf-8")
    words = "keys: expected a key of printable ASCII characters, found others on line 3"
    with pytest.raises(DragomanError, match=words) as caught:
        read_keys(file)
    assert key not in str(caught.value)
