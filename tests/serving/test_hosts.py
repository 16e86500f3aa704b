"""Bundles are loaded when they are needed, unloaded when they are not, and replaced while requests
go on."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.errors import DragomanError
from dragoman.runtime import (
    Bundle,
    BundleError,
    GenerationOptions,
    Model,
    load,
    read_bundle,
)
from dragoman.runtime.serving.engine.engine import Engine
from dragoman.runtime.serving.engine.observer import Nobody
from dragoman.runtime.serving.host import UnavailableError
from dragoman.runtime.serving.hosts import Hosts, names_of
from dragoman.runtime.serving.metrics import Metrics
from dragoman.runtime.serving.options import EngineOptions, ServerOptions
from dragoman.runtime.serving.service import Service

from .conftest import copy_as, make_letters, serving

Bundles = Callable[[str], Path]
OPTIONS = ServerOptions(engine=EngineOptions(rows=4))


def hosts_of(**directories: Path) -> Hosts:
    return Hosts(dict(directories), OPTIONS, lambda name: Nobody())


def replace(directory: Path, by: Path) -> None:
    """As `dragoman build --force` does: what is there is there whole at any time."""
    fresh = directory.with_name("fresh")
    shutil.copytree(by, fresh)
    old = directory.with_name("old")
    directory.rename(old)
    fresh.rename(directory)
    shutil.rmtree(old)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the same vocabularies, with other weights."""
    return make_letters(tmp_path_factory.mktemp("other") / "letters", seed=4)


def test_loaded_by_the_first_request_and_unloaded_when_idle(
    bundle: Bundles, model: Callable[[str], Model]
) -> None:
    async def main() -> None:
        hosts = hosts_of(letters=bundle("letters"))
        service = Service(hosts, OPTIONS, Metrics())
        host = hosts.get()
        for _ in range(2):  # and loaded again
            states = [host.loaded]
            (result,) = await service.generate(host, ["dragoman"], [GenerationOptions()])
            assert result == model("letters").generate(["dragoman"])[0]
            states.append(host.loaded)
            host.unload_if_idle(3600.0)
            states.append(host.loaded)
            async with host.engine(Engine):
                host.unload_if_idle(0.0)
                states.append(host.loaded)
            host.unload_if_idle(0.0)
            assert [*states, host.loaded] == [False, True, True, True, False]
        await hosts.close()
        service.close()

    asyncio.run(main())


def test_two_first_requests_load_it_once(bundle: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Bundle] = []

    def counting(directory: Bundle, **options: object) -> Model:
        loads.append(directory)
        return load(directory, threads=1)

    monkeypatch.setattr("dragoman.runtime.serving.host.load", counting)

    async def main() -> None:
        hosts = hosts_of(letters=bundle("letters"))
        await asyncio.gather(*(hosts.get().load() for _ in range(5)))
        await hosts.close()

    asyncio.run(main())
    assert len(loads) == 1


def test_a_request_that_goes_while_its_bundle_is_loaded_leaves_it_loaded_once(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go = threading.Event(), threading.Event()
    loads: list[Bundle] = []

    def slow(directory: Bundle, **options: object) -> Model:
        loads.append(directory)
        begun.set()
        assert may_go.wait(60)
        return load(directory, threads=1)

    monkeypatch.setattr("dragoman.runtime.serving.host.load", slow)

    async def main() -> None:
        hosts = hosts_of(letters=bundle("letters"))
        host = hosts.get()
        first = asyncio.ensure_future(host.load())
        await asyncio.to_thread(begun.wait, 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.ensure_future(host.load())
        await asyncio.sleep(0)
        may_go.set()
        await second
        assert host.loaded
        await hosts.close()

    asyncio.run(main())
    assert len(loads) == 1


def test_of_a_bundle_that_is_not_loaded_the_newest_manifest_is_known(
    bundle: Bundles, tmp_path: Path
) -> None:
    """Else what it can do would be that of the old one, and nothing would ever load the new one."""
    directory = copy_as(bundle("letters"), tmp_path / "letters")

    async def main() -> None:
        hosts = hosts_of(letters=directory)
        host = hosts.get()
        replace(directory, bundle("vectors"))
        await host.refresh()
        assert not host.loaded
        service = Service(hosts, OPTIONS, Metrics())
        assert len(await service.read_texts(host, "embeddings", ["a"], {"truncate": False})) == 1
        await hosts.close()
        service.close()

    asyncio.run(main())


def test_an_engine_that_cannot_be_made_leaves_manifest_and_engine_as_they_are(
    bundle: Bundles, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copy_as(bundle("letters"), tmp_path / "letters")

    def fails(*arguments: object, **options: object) -> None:
        raise MemoryError

    async def main() -> None:
        options = dataclasses.replace(OPTIONS, watch_seconds=0.001)
        hosts = Hosts({"letters": directory}, options, lambda name: Nobody())
        host = hosts.get()
        await host.load()
        before, hosted = host.manifest, host._hosted
        tried = asyncio.Event()
        original = host.refresh

        async def refresh() -> None:
            try:
                await original()
            finally:
                if host.manifest is before:
                    tried.set()

        monkeypatch.setattr(host, "refresh", refresh)
        with monkeypatch.context() as patched:
            patched.setattr("dragoman.runtime.serving.host.Engine", fails)
            replace(directory, other)
            watching = asyncio.ensure_future(hosts.watch())
            await tried.wait()
            assert (host.manifest, host._hosted) == (before, hosted)
        while host._hosted is hosted:  # the watch goes on, and succeeds
            assert not watching.done()
            await asyncio.sleep(0)
        assert host.manifest == read_bundle(other).manifest
        watching.cancel()
        await hosts.close()

    asyncio.run(main())


def test_replaced_while_requests_go_on(bundle: Bundles, other: Path, tmp_path: Path) -> None:
    """Those that began with the old bundle end with it; later ones get the new one's outputs."""
    directory = copy_as(bundle("letters"), tmp_path / "letters")
    words = ["dragoman", "transformer", "interpreters"]
    before, after = (
        [result.tokens for result in load(of, threads=1).generate(words)]
        for of in (directory, other)
    )
    assert before != after

    async def main() -> None:
        hosts = hosts_of(letters=directory)
        service, host = Service(hosts, OPTIONS, Metrics()), hosts.get()

        async def tokens() -> list[tuple[int, ...]]:
            results = await service.generate(host, words, [GenerationOptions()] * 3)
            return [result.tokens for result in results]

        assert await tokens() == before
        await host.refresh()
        async with host.engine(Engine) as old:
            replace(directory, other)
            begun = [asyncio.ensure_future(tokens()) for _ in range(5)]
            await host.refresh()
            for each in begun:
                assert await each in (before, after)
            assert await tokens() == after
            alive = [old.alive]  # somebody uses it
        await hosts.close()
        assert [*alive, old.alive] == [True, False]
        service.close()

    asyncio.run(main())


def test_a_damaged_replacement_leaves_things_as_they_are(bundle: Bundles, tmp_path: Path) -> None:
    directory = copy_as(bundle("letters"), tmp_path / "letters")

    async def main() -> None:
        hosts = hosts_of(letters=directory)
        service, host = Service(hosts, OPTIONS, Metrics()), hosts.get()
        await host.load()
        manifest = directory / "manifest.json"
        whole = manifest.read_bytes()
        manifest.write_bytes(whole[:100])
        await host.refresh()
        (result,) = await service.generate(host, ["dragoman"], [GenerationOptions()])
        assert result.error is None
        host.unload()
        with pytest.raises(UnavailableError, match="letters cannot be loaded"):
            await host.load()
        manifest.write_bytes(whole)
        await host.load()
        await hosts.close()
        service.close()

    asyncio.run(main())


def test_a_bundle_that_cannot_be_loaded_is_that_bundles_problem(
    bundle: Bundles, tmp_path: Path
) -> None:
    broken = copy_as(bundle("letters"), tmp_path / "broken")
    directories = {"letters": bundle("letters"), "broken": broken}
    with serving(directories, preload=False) as client:
        (broken / "decoder.onnx").write_bytes(b"")
        answer = client.post("/v1/generate", json={"model": "broken", "source": "a"})
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        answer = client.post("/v1/generate", json={"model": "letters", "source": "a"})
        assert answer.status_code == 200
        assert client.post("/v2/repository/models/letters/unload").status_code == 200
        states = {m["name"]: m["state"] for m in client.post("/v2/repository/index").json()}
        assert states == {"letters": "UNAVAILABLE", "broken": "UNAVAILABLE"}
        assert client.post("/v2/repository/models/letters/load").status_code == 200
        assert client.post("/v2/repository/models/broken/load").status_code == 503


def test_what_is_no_bundle_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no manifest\.json"):
        hosts_of(empty=tmp_path)


def test_names_are_those_of_directories(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "other" / "a"
    assert names_of([a, tmp_path / "b"]) == {"a": a, "b": tmp_path / "b"}
    with pytest.raises(DragomanError, match="expected bundles of different names, found"):
        names_of([a, b])
