"""Models are loaded when needed, unloaded when idle, and replaced while requests run."""

from __future__ import annotations

import asyncio
import dataclasses
import os
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
from dragoman.runtime.decoding.scheduler import Observer
from dragoman.runtime.format.known_answers import KNOWN_ANSWERS_FILE
from dragoman.runtime.serving import models
from dragoman.runtime.serving.engine.engine import DecodingEngine
from dragoman.runtime.serving.metrics import Metrics
from dragoman.runtime.serving.models import ModelRegistry, UnavailableError
from dragoman.runtime.serving.options import EngineOptions, ServerOptions, bundle_names
from dragoman.runtime.serving.service import Service

from ..bundle_files import add_answers, record_again
from ..zoo import letters_model
from .conftest import copy_as, make_letters, serving

Bundles = Callable[[str], Path]
OPTIONS = ServerOptions(engine=EngineOptions(batch_size=4))


def registry_of(**directories: Path) -> ModelRegistry:
    return ModelRegistry(dict(directories), OPTIONS, lambda name: Observer())


def replace(directory: Path, by: Path) -> None:
    """Replace a bundle as `dragoman build --force` does: it is complete at any time."""
    fresh = directory.with_name("fresh")
    shutil.copytree(by, fresh)
    old = directory.with_name("old")
    directory.rename(old)
    fresh.rename(directory)
    shutil.rmtree(old)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with the same vocabularies and other weights."""
    return make_letters(tmp_path_factory.mktemp("other") / "letters", seed=4)


def test_load_at_first_request_and_unload_when_idle(
    bundle: Bundles, model: Callable[[str], Model]
) -> None:
    async def main() -> None:
        models = registry_of(letters=bundle("letters"))
        service = Service(models, OPTIONS, Metrics())
        served = models.get()
        for _ in range(2):  # and loaded again
            states = [served.loaded]
            (result,) = await service.generate(served, ["dragoman"], [GenerationOptions()])
            assert result == model("letters").generate(["dragoman"])[0]
            states.append(served.loaded)
            served.unload_if_idle(3600.0)
            states.append(served.loaded)
            async with served.engine(DecodingEngine):
                served.unload_if_idle(0.0)
                states.append(served.loaded)
            served.unload_if_idle(0.0)
            assert [*states, served.loaded] == [False, True, True, True, False]
        await models.close()
        service.close()

    asyncio.run(main())


def test_concurrent_first_requests_load_once(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[Bundle] = []

    def counting(directory: Bundle, **options: object) -> Model:
        loads.append(directory)
        return load(directory, threads=1)

    monkeypatch.setattr("dragoman.runtime.serving.arrangement.load", counting)

    async def main() -> None:
        models = registry_of(letters=bundle("letters"))
        await asyncio.gather(*(models.get().load() for _ in range(5)))
        await models.close()

    asyncio.run(main())
    assert len(loads) == 1


def test_a_request_that_is_cancelled_while_loading_leaves_the_model_loaded_once(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go = threading.Event(), threading.Event()
    loads: list[Bundle] = []

    def slow(directory: Bundle, **options: object) -> Model:
        loads.append(directory)
        begun.set()
        assert may_go.wait(60)
        return load(directory, threads=1)

    monkeypatch.setattr("dragoman.runtime.serving.arrangement.load", slow)

    async def main() -> None:
        models = registry_of(letters=bundle("letters"))
        served = models.get()
        first = asyncio.ensure_future(served.load())
        await asyncio.to_thread(begun.wait, 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.ensure_future(served.load())
        await asyncio.sleep(0)
        may_go.set()
        await second
        assert served.loaded
        await models.close()

    asyncio.run(main())
    assert len(loads) == 1


def test_the_newest_manifest_is_known_before_loading(bundle: Bundles, tmp_path: Path) -> None:
    """Otherwise its abilities would be the old bundle's, and no request would load the new one."""
    directory = copy_as(bundle("letters"), tmp_path / "letters")

    async def main() -> None:
        models = registry_of(letters=directory)
        served = models.get()
        replace(directory, bundle("vectors"))
        await served.refresh()
        assert not served.loaded
        service = Service(models, OPTIONS, Metrics())
        assert len(await service.run_encoder(served, "embeddings", ["a"], {"truncate": False})) == 1
        await models.close()
        service.close()

    asyncio.run(main())


def test_a_failing_engine_leaves_manifest_and_engine_unchanged(
    bundle: Bundles, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = copy_as(bundle("letters"), tmp_path / "letters")

    def fails(*arguments: object, **options: object) -> None:
        raise MemoryError

    async def main() -> None:
        options = dataclasses.replace(OPTIONS, watch_seconds=0.001)
        models = ModelRegistry({"letters": directory}, options, lambda name: Observer())
        served = models.get()
        await served.load()
        before, current = served.manifest, served._current
        tried = asyncio.Event()
        original = served.refresh

        async def refresh() -> None:
            try:
                await original()
            finally:
                if served.manifest is before:
                    tried.set()

        monkeypatch.setattr(served, "refresh", refresh)
        with monkeypatch.context() as patched:
            patched.setattr("dragoman.runtime.serving.models.open_engine", fails)
            replace(directory, other)
            watching = asyncio.ensure_future(models.watch())
            await tried.wait()
            assert (served.manifest, served._current) == (before, current)
        while served._current is current:  # the watch goes on, and succeeds
            assert not watching.done()
            await asyncio.sleep(0)
        assert served.manifest == read_bundle(other).manifest
        watching.cancel()
        await models.close()

    asyncio.run(main())


def test_replacement_while_requests_run(bundle: Bundles, other: Path, tmp_path: Path) -> None:
    """Running requests end with the old bundle; later requests get outputs of the new one."""
    directory = copy_as(bundle("letters"), tmp_path / "letters")
    words = ["dragoman", "transformer", "interpreters"]
    before, after = (
        [result.tokens for result in load(of, threads=1).generate(words)]
        for of in (directory, other)
    )
    assert before != after

    async def main() -> None:
        models = registry_of(letters=directory)
        service, served = Service(models, OPTIONS, Metrics()), models.get()

        async def tokens() -> list[tuple[int, ...]]:
            results = await service.generate(served, words, [GenerationOptions()] * 3)
            return [result.tokens for result in results]

        assert await tokens() == before
        await served.refresh()
        async with served.engine(DecodingEngine) as old:
            replace(directory, other)
            begun = [asyncio.ensure_future(tokens()) for _ in range(5)]
            await served.refresh()
            for each in begun:
                assert await each in (before, after)
            assert await tokens() == after
            alive = [old.alive]  # somebody uses it
        await models.close()
        assert [*alive, old.alive] == [True, False]
        service.close()

    asyncio.run(main())


def test_a_damaged_replacement_changes_nothing(bundle: Bundles, tmp_path: Path) -> None:
    directory = copy_as(bundle("letters"), tmp_path / "letters")

    async def main() -> None:
        models = registry_of(letters=directory)
        service, served = Service(models, OPTIONS, Metrics()), models.get()
        await served.load()
        manifest = directory / "manifest.json"
        whole = manifest.read_bytes()
        manifest.write_bytes(whole[:100])
        await served.refresh()
        (result,) = await service.generate(served, ["dragoman"], [GenerationOptions()])
        assert result.error is None
        served.unload()
        with pytest.raises(UnavailableError, match="letters cannot be loaded"):
            await served.load()
        manifest.write_bytes(whole)
        await served.load()
        await models.close()
        service.close()

    asyncio.run(main())


def test_a_bundle_whose_known_answers_differ_is_not_served_and_replaces_none(
    bundle: Bundles, tmp_path: Path
) -> None:
    right = copy_as(bundle("letters"), tmp_path / "letters")
    add_answers(right, letters_model())
    wrong = copy_as(right, tmp_path / "wrong")
    file = wrong / KNOWN_ANSWERS_FILE
    file.write_text(file.read_text().replace('"log_probabilities": [-', '"log_probabilities": [-9'))
    record_again(wrong)

    async def main() -> None:
        refused = registry_of(wrong=wrong)
        with pytest.raises(
            UnavailableError, match="gives other probabilities than those proven"
        ) as error:
            await refused.get().load()
        assert error.value.status == 503
        assert not refused.get().loaded
        models = registry_of(letters=right)
        service, served = Service(models, OPTIONS, Metrics()), models.get()
        await served.load()
        before = served.manifest
        replace(right, wrong)
        await served.refresh()
        assert served.manifest == before, "the old one stays"
        (result,) = await service.generate(served, ["dragoman"], [GenerationOptions()])
        assert result.error is None
        unchecked = ModelRegistry(
            {"wrong": wrong},
            ServerOptions(engine=EngineOptions(check="never")),
            lambda name: Observer(),
        )
        await unchecked.get().load()
        for registry in (refused, models, unchecked):
            await registry.close()
        service.close()

    asyncio.run(main())


def test_a_bundle_that_cannot_be_loaded_does_not_affect_others(
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


def test_a_replacement_that_may_not_be_read_is_refused_by_name(
    bundle: Bundles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As after `cp` with a umask of 077; the tests may run as root, who may read everything."""
    directory = copy_as(bundle("letters"), tmp_path / "letters")
    (model,) = registry_of(letters=directory).all
    stat = Path.stat

    def stat_or_not(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.parent == directory:
            raise PermissionError(path)
        return stat(path, follow_symlinks=follow_symlinks)

    def refuse(path: Path) -> Bundle:
        raise BundleError(str(path), ["manifest.json: expected a readable file"])

    monkeypatch.setattr(Path, "stat", stat_or_not)
    monkeypatch.setattr(models, "read_bundle", refuse)
    for _ in range(2):
        asyncio.run(model.refresh())
    assert [record.message for record in caplog.records] == ["replacement refused"]  # once
    assert "expected a readable file" in vars(caplog.records[0])["error"]


def test_a_directory_without_a_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"no manifest\.json"):
        registry_of(empty=tmp_path)


def test_models_are_named_by_their_directories(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "other" / "a"
    assert bundle_names([a, tmp_path / "b"]) == {"a": a, "b": tmp_path / "b"}
    with pytest.raises(DragomanError, match="expected bundles of different names, found"):
        bundle_names([a, b])
