"""AsyncModel: concurrent calls of coroutines give what `Model` gives, and stop with their tasks."""

from __future__ import annotations

import asyncio
import gc
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.runtime import (
    AbilityError,
    AsyncModel,
    DeadlineError,
    DeviceLostError,
    DragomanError,
    GenerationOptions,
    Model,
    OverloadedError,
    RejectedError,
    UnfinishedError,
)
from dragoman.runtime.audio import AudioError
from dragoman.runtime.backends.interface import BackendError, ClosedModelError
from dragoman.runtime.decoding.results import Token
from dragoman.runtime.decoding.running_batch import RunningBatch
from dragoman.runtime.encoding import front_end
from dragoman.runtime.serving import async_model
from dragoman.runtime.serving.engine.engine import DecodingEngine
from dragoman.runtime.serving.engine.request_handle import DecodingHandle

from ..speech_models import noise

Bundles = Callable[[str], Path]
Models = Callable[[str], Model]

WORDS = ["dragoman", "a", "interpreter", "word", "", "translation", "1+1", "q", "transformer"]
STRATEGIES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 4, "num_return_sequences": 3},
    "samples": {"do_sample": True, "seed": 3, "num_return_sequences": 2},
}


class Gate:
    """Once it is shut, lets the steps of batches pass one by one, whatever thread decodes them.

    Attributes:
        rows: rows of each step
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        self._shut = False
        self._tickets = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        step = RunningBatch.step

        def gated(batch: RunningBatch[Any]) -> Any:
            if self._shut:
                self.rows.append(batch.count)
                self._arrived.release()
                assert self._tickets.acquire(timeout=60)
            return step(batch)

        patch.setattr(RunningBatch, "step", gated)

    def shut(self) -> None:
        """Let no step pass until `let` is called."""
        self._shut = True

    async def arrived(self) -> None:
        """Wait until a step is about to be decoded."""
        assert await asyncio.to_thread(self._arrived.acquire, timeout=60)

    def let(self, steps: int) -> None:
        self._tickets.release(steps)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.let(10_000)


def run(bundle: Path, work: Callable[[AsyncModel], Awaitable[Any]], **options: Any) -> Any:
    """Load a model, and call a coroutine function with it."""

    async def main() -> Any:
        async with await AsyncModel.load(bundle, **{"workers": 1, "threads": 1} | options) as model:
            return await asyncio.wait_for(work(model), 120)

    return asyncio.run(main())


async def assert_no_rows(model: AsyncModel) -> None:
    """A call of two steps ends after the engine has seen, before a step, which calls are over."""
    await model.generate(["a"], min_new_tokens=2, max_new_tokens=2)
    assert model.rows == 0


@pytest.mark.parametrize("name", ["letters", "verses", "speech"])
def test_concurrent_calls_give_what_a_model_gives(
    name: str, bundle: Bundles, model: Models
) -> None:
    sources: list[Any] = WORDS
    if name == "speech":
        sources = [noise(2.4, seed=1), noise(0.4, seed=2), np.zeros(0, np.float32)]
    limit: dict[str, Any] = {"max_new_tokens": 12}
    expected = {
        key: model(name).generate(sources, **limit, **options)
        for key, options in STRATEGIES.items()
        if name != "speech" or "num_return_sequences" not in options
    }
    pairs: list[Any] = [(source, [4, 5, 6]) for source in sources[1:]]
    scored = model(name).score(pairs)
    streamed = [list(model(name).stream(source, **limit)) for source in sources[1:2]]

    async def work(served: AsyncModel) -> None:
        async def stream(source: Any) -> list[Any]:
            return [token async for token in served.stream(source, **limit)]

        calls: list[Any] = [
            served.generate(sources, **limit, **STRATEGIES[key]) for key in expected for _ in "ab"
        ]
        singles = [served.generate([source], **limit) for source in sources]
        found = await asyncio.gather(
            *calls, *singles, served.score(pairs), *map(stream, sources[1:2])
        )
        assert found[: len(calls)] == [results for results in expected.values() for _ in "ab"]
        greedy = [[result] for result in expected["greedy"]]
        assert found[len(calls) : len(calls) + len(sources)] == greedy
        assert found[len(calls) + len(sources) :] == [scored, *streamed]

    run(bundle(name), work, batch_size=5)


def test_updates_of_speech_are_those_of_a_model(bundle: Bundles, model: Models) -> None:
    sources = [noise(2.4, seed=1), noise(0.4, seed=2)]
    plain: dict[str, Any] = {"vad": False, "language": "de", "num_beams": 1}
    expected = list(model("speech").transcribe(sources, **plain, max_new_tokens=12))
    heard = list(model("speech").listen(sources, vad=False, language="de"))
    languages = model("speech").detect_language(sources, vad=False)

    async def chunks() -> AsyncIterator[Any]:
        for source in sources:
            await asyncio.sleep(0)
            yield source

    async def work(served: AsyncModel) -> None:
        async def transcribed() -> list[Any]:
            updates = served.transcribe(sources, **plain, max_new_tokens=12)
            return [update async for update in updates]

        async def listened() -> list[Any]:
            return [u async for u in served.listen(chunks(), vad=False, language="de")]

        found = await asyncio.gather(
            transcribed(), listened(), served.detect_language(sources, vad=False), transcribed()
        )
        assert found == [expected, heard, languages, expected]

    run(bundle("speech"), work)


def test_updates_of_speech_end_with_their_generator_and_their_chunks(bundle: Bundles) -> None:
    def transcribing() -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == "transcribing"]

    async def chunks(error: Exception | None) -> AsyncIterator[Any]:
        yield noise(2.4, seed=1)
        if error is not None:
            raise error
        await asyncio.sleep(3600)

    async def quiet() -> AsyncIterator[Any]:
        await asyncio.sleep(3600)
        yield b""

    async def wrong() -> AsyncIterator[Any]:
        try:
            while True:
                yield None
                await asyncio.sleep(0)
        finally:
            left.append("wrong")

    left: list[str] = []
    unhandled: list[Any] = []

    async def work(served: AsyncModel) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: unhandled.append(found))
        sources = [noise(2.4, seed=seed) for seed in range(8)]
        async with aclosing(served.transcribe(sources, vad=False, max_batch_size=1)) as updates:
            assert (await anext(updates)).index == 0
        async with aclosing(served.listen(chunks(None), vad=False)) as words:
            assert (await anext(words)).text
        assert not transcribing()
        found = []
        with pytest.raises(ValueError, match="the microphone is gone"):
            gone = chunks(ValueError("the microphone is gone"))
            async for update in served.listen(gone, vad=False):
                found.append(update)
        assert found and found[-1].segment is not None
        for audio in (chunks(None), quiet()):
            with pytest.raises(DeadlineError):
                await anext(served.listen(audio, vad=False, timeout=1e-9))
        with pytest.raises(AudioError, match="chunk: expected bytes or samples"):
            await anext(served.listen(wrong(), vad=False))
        assert left == ["wrong"] and not unhandled
        with pytest.raises(DragomanError, match="prefix: for recordings"):
            await anext(served.listen(chunks(None), prefix="a"))
        await served.close()
        with pytest.raises(ClosedModelError):
            await anext(served.transcribe(sources))
        with pytest.raises(ClosedModelError):
            await anext(served.listen(chunks(None)))
        assert not transcribing()

    run(bundle("speech"), work)
    gc.collect()
    assert not unhandled


def test_encoders_give_what_a_model_gives(bundle: Bundles, model: Models) -> None:
    texts = ["the man", "paris is in france.", "a", "food", "the man eats food."]
    expected, states = model("vectors").encode(texts), model("vectors").hidden_states(texts)

    async def work(served: AsyncModel) -> None:
        calls = [served.encode(texts), served.encode(texts[1:]), served.encode([])]
        whole, part, none = await asyncio.gather(*calls)
        np.testing.assert_array_equal(whole, expected)
        np.testing.assert_array_equal(part, expected[1:])
        np.testing.assert_array_equal(await served.encode(texts, dimensions=5), expected[:, :5])
        with pytest.raises(RejectedError, match="dimensions: expected 1 to 24, found 25"):
            await served.encode(texts, dimensions=25)
        assert none.shape == (0, expected.shape[1])
        for one, other in zip(await served.hidden_states(texts), states, strict=True):
            np.testing.assert_array_equal(one, other)
        with pytest.raises(RejectedError, match="text 1: "):
            await served.encode(["a", [9999]])
        with pytest.raises(AbilityError, match="computes embeddings"):
            await served.classify(["a"])
        with pytest.raises(AbilityError):
            await served.generate(["a"])

    run(bundle("vectors"), work)


def test_rankings_and_given_labels_are_those_of_a_model(bundle: Bundles, model: Models) -> None:
    query = "the man eats"
    documents: list[Any] = ["paris", "food", 5, "the man"]
    ranked = model("relevance").rerank(query, documents)
    texts, labels = ["the man", "paris"], ["food", "paris", "a"]
    classified = model("classes").classify_zero_shot(texts, labels, hypothesis_template="is {}")

    async def rank(served: AsyncModel) -> None:
        loop, tokenize = threading.get_ident(), front_end.EncoderFrontEnd.tokenize
        threads: list[int] = []

        def spy(encoder: front_end.EncoderFrontEnd, *given: Any, **reading: Any) -> Any:
            threads.append(threading.get_ident())
            return tokenize(encoder, *given, **reading)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(front_end.EncoderFrontEnd, "tokenize", spy)
            assert await served.rerank(query, documents) == ranked
        assert threads and loop not in threads
        assert await served.rerank(query, documents) == ranked
        assert await served.rerank(query, documents, top=1) == ranked[:1]
        with pytest.raises(RejectedError, match="query: expected a text, found 3"):
            await served.rerank(3, documents)  # type: ignore[arg-type]
        with pytest.raises(DragomanError, match="top: expected an integer of at least 1"):
            await served.rerank(query, documents, top=0)
        with pytest.raises(AbilityError, match="a label that begins with entail"):
            await served.classify_zero_shot(texts, labels)

    async def classify(served: AsyncModel) -> None:
        work = served.classify_zero_shot
        calls = [work(texts[n:], labels, hypothesis_template="is {}") for n in (0, 1, 0)]
        assert await asyncio.gather(*calls) == [classified, classified[1:], classified]
        with pytest.raises(DragomanError, match="labels: expected each label once"):
            await work(texts, ["a", "a"])
        with pytest.raises(AbilityError, match="expected a model with one label"):
            await served.rerank(query, documents)

    run(bundle("relevance"), rank)
    run(bundle("classes"), classify)


def test_errors_are_those_of_a_model(bundle: Bundles, model: Models) -> None:
    wrong = [GenerationOptions(), GenerationOptions(num_beams=1, num_return_sequences=2)]
    expected = model("letters").generate(["ab", "cd"], wrong)

    async def work(served: AsyncModel) -> None:
        assert await served.generate(["ab", "cd"], wrong) == expected
        assert expected[1].error is not None
        for sources in ([], ["ab"]):
            with pytest.raises(DragomanError, match="num_return_sequences"):
                await served.generate(sources, num_return_sequences=2)
        with pytest.raises(DragomanError, match="expected a list of inputs, found one"):
            await served.generate("ab")
        with pytest.raises(DragomanError, match="timeout: expected seconds above 0, found -1"):
            await served.score([], timeout=-1)
        with pytest.raises(RejectedError, match="unknown"):
            await anext(served.stream("1+1"))
        with pytest.raises(DragomanError, match="num_beams: expected 1 to stream"):
            await anext(served.stream("ab", num_beams=2))
        with pytest.raises(StopAsyncIteration):
            await anext(served.stream(""))
        with pytest.raises(TypeError, match="an AsyncModel cannot be pickled"):
            pickle.dumps(served)

    run(bundle("letters"), work)


def test_wrong_numbers_are_refused_before_loading(bundle: Bundles) -> None:
    for options in ({"workers": 0}, {"threads": "2"}, {"max_waiting": 0}, {"batch_size": True}):
        (name,) = options
        with pytest.raises(DragomanError, match=f"{name}: expected an integer of at least 1"):
            asyncio.run(AsyncModel.load(bundle("letters"), **options))
    with pytest.raises(DragomanError, match="expected the path of a bundle, found 3"):
        asyncio.run(AsyncModel.load(3))  # type: ignore[arg-type]


def test_a_cancelled_task_frees_its_rows_and_no_others(
    bundle: Bundles, model: Models, gate: Gate
) -> None:
    async def work(served: AsyncModel) -> None:
        long = asyncio.ensure_future(served.generate(["dragoman"] * 3, min_new_tokens=20))
        await gate.arrived()
        assert gate.rows == [3]
        stays = asyncio.ensure_future(served.generate(["word"], max_new_tokens=4))
        while not len(served._engine.queue):
            await asyncio.sleep(0)
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        gate.let(10_000)
        assert await stays == expected
        await assert_no_rows(served)
        assert set(gate.rows[1:]) == {1}

    expected = model("letters").generate(["word"], max_new_tokens=4)
    gate.shut()
    run(bundle("letters"), work)


def test_a_timeout_of_asyncio_cancels_a_call_in_the_queue(bundle: Bundles, gate: Gate) -> None:
    async def work(served: AsyncModel) -> None:
        first = asyncio.ensure_future(served.generate(["dragoman"], max_new_tokens=2))
        await gate.arrived()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await served.generate(["word"] * 5)
        gate.let(10_000)
        await first
        await assert_no_rows(served)
        assert set(gate.rows) == {1}

    gate.shut()
    run(bundle("letters"), work, batch_size=1)


@pytest.mark.parametrize("is_closed", [False, True], ids=["left", "closed"])
def test_leaving_a_stream_frees_its_row(
    bundle: Bundles, model: Models, gate: Gate, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """While a later step waits at the gate, so that the stream cannot have ended by itself."""
    expected = list(model("letters").stream("dragoman", min_new_tokens=20))
    handles: list[DecodingHandle] = []
    submit = DecodingEngine.submit

    def recorded(engine: DecodingEngine, *new: DecodingHandle, **options: Any) -> None:
        handles.extend(new)
        submit(engine, *new, **options)

    monkeypatch.setattr(DecodingEngine, "submit", recorded)

    async def work(served: AsyncModel) -> None:
        gate.let(10)  # fewer than the stream has
        if is_closed:
            async with aclosing(served.stream("dragoman", min_new_tokens=20)) as tokens:
                assert [await anext(tokens) for _ in range(3)] == expected[:3]
        else:
            async for token in served.stream("dragoman", min_new_tokens=20):
                assert token == expected[0]
                break
            await asyncio.wait([asyncio.wrap_future(handles[0].future)])
        assert [handle.future.cancelled() for handle in handles] == [True]
        gate.let(10_000)
        await assert_no_rows(served)
        assert [t async for t in served.stream("dragoman", min_new_tokens=20)] == expected

    gate.shut()
    run(bundle("letters"), work)


def test_time_runs_out_and_finished_results_are_kept(
    bundle: Bundles, model: Models, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of deadlines is moved on, not waited for."""
    late = 0.0
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: monotonic() + late)})
    import time

    monotonic = time.monotonic
    monkeypatch.setattr("dragoman.runtime.serving.engine.worker.time", clock)

    async def work(served: AsyncModel) -> None:
        nonlocal late
        options = [GenerationOptions(max_new_tokens=limit) for limit in (2, 20, 2)]
        options[1] = options[1].replace(min_new_tokens=20)
        call = asyncio.ensure_future(
            served.generate(["a", "dragoman", "", "q"], [*options[:2], *options[1:]], timeout=1000)
        )
        await gate.arrived()
        gate.let(3)
        for _ in range(3):
            await gate.arrived()
        late = 2000.0
        gate.let(10_000)
        with pytest.raises(DeadlineError, match="not done within 1e\\+03 s") as stopped:
            await call
        assert stopped.value.finished.keys() == {0, 2, 3}
        assert stopped.value.finished[0] == expected
        await assert_no_rows(served)
        assert await served.generate(["a"], max_new_tokens=2) == [expected]

    (expected,) = model("letters").generate(["a"], max_new_tokens=2)
    gate.shut()
    run(bundle("letters"), work)


def test_time_runs_out_between_batches_of_an_encoder(
    bundle: Bundles, model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch takes a second on this clock."""
    seconds = 0.0
    texts = ["a", "b", "c", "d", "e"]
    expected = model("vectors").encode(texts)
    import time

    begin = time.monotonic()
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: begin + seconds)})
    monkeypatch.setattr(front_end, "MAX_BATCH_SIZE", 2)
    for module in ("encoder_engine", "request_handle"):
        monkeypatch.setattr(f"dragoman.runtime.serving.engine.{module}.time", clock)
    monkeypatch.setattr("dragoman.runtime.serving.async_model.time", clock)

    async def work(served: AsyncModel) -> None:
        nonlocal seconds
        encode = served.model.backend.encode

        def slow(*inputs: Any) -> Any:
            nonlocal seconds
            seconds += 1
            return encode(*inputs)

        monkeypatch.setattr(served.model.backend, "encode", slow)
        with pytest.raises(DeadlineError) as stopped:
            await served.encode(texts, timeout=1.5)
        assert seconds == 2
        assert len(stopped.value.finished) == 4
        for index, vector in stopped.value.finished.items():
            np.testing.assert_array_equal(vector, expected[index])
        np.testing.assert_array_equal(await served.encode(texts), expected)

    run(bundle("vectors"), work)


def test_cancelled_scores_and_readings_end(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(served: AsyncModel) -> None:
        begun, go_on, batches = threading.Event(), threading.Event(), []
        score = served.model.backend.score

        def slow(*inputs: Any) -> Any:
            batches.append(1)
            begun.set()
            assert go_on.wait(60)
            return score(*inputs)

        monkeypatch.setattr(served.model.backend, "score", slow)
        call = asyncio.ensure_future(served.score([("ab", [4])] * 5, max_batch_size=1))
        assert await asyncio.to_thread(begun.wait, 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go_on.set()
        assert [pair.error for pair in await served.score([("ab", [4])])] == [None]
        await asyncio.to_thread(served._scoring.shutdown)
        assert len(batches) == 2

    run(bundle("letters"), work)


def test_too_many_waiting_outputs_are_refused(bundle: Bundles, gate: Gate) -> None:
    async def work(served: AsyncModel) -> None:
        first = asyncio.ensure_future(served.generate(["a"], max_new_tokens=2))
        await gate.arrived()
        accepted = asyncio.ensure_future(served.generate(["b"] * 9, max_new_tokens=2))
        while not len(served._engine.queue):
            await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="expected at most 4 outputs to wait, found 9"):
            await served.generate(["c"])
        gate.let(10_000)
        assert len(await first) + len(await accepted) == 10
        assert (await served.generate(["c"]))[0].error is None

    gate.shut()
    run(bundle("letters"), work, batch_size=1, max_waiting=4)


def test_further_recordings_of_an_accepted_call_are_not_refused(
    bundle: Bundles, model: Models, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call holds only some recordings in memory; meanwhile, others fill the queue."""
    monkeypatch.setattr(async_model, "OPEN_RECORDINGS", 1)
    sources = [noise(0.4, seed=seed) for seed in (1, 2)]

    async def work(served: AsyncModel) -> None:
        queue = served._engine.queue
        accepted = asyncio.ensure_future(served.generate(sources, max_new_tokens=2))
        await gate.arrived()
        others = [asyncio.ensure_future(served.generate(sources[:1])) for _ in "ab"]
        while len(queue) < 2:
            await asyncio.sleep(0)
        queue._most = 1
        gate.let(10_000)
        assert await accepted == expected
        await asyncio.gather(*others)

    expected = model("speech").generate(sources, max_new_tokens=2)
    gate.shut()
    run(bundle("speech"), work, batch_size=1, max_waiting=2)


def test_closing_waits_for_calls_that_have_begun(
    bundle: Bundles, model: Models, gate: Gate
) -> None:
    async def work(served: AsyncModel) -> None:
        running_call = asyncio.ensure_future(served.generate(["a"], max_new_tokens=2))
        await gate.arrived()
        waiting = asyncio.ensure_future(served.generate(["b"], max_new_tokens=2))
        abandoned = served.stream("dragoman")
        while not len(served._engine.queue):
            await asyncio.sleep(0)
        closing = [asyncio.ensure_future(served.close()) for _ in range(2)]
        await asyncio.sleep(0)
        for call in (served.generate(["c"]), served.score([]), anext(abandoned)):
            with pytest.raises(ClosedModelError):
                await call
        assert not any(one.done() for one in closing)
        gate.let(10_000)
        assert [(await call)[0].error for call in (running_call, waiting)] == [None, None]
        await asyncio.gather(*closing)
        await served.close()
        assert served.rows == 0

    gate.shut()
    run(bundle("letters"), work, batch_size=1)


def test_a_suspended_stream_does_not_keep_a_model_open(bundle: Bundles) -> None:
    async def main() -> list[Any]:
        served = await AsyncModel.load(bundle("letters"), workers=1, threads=1)
        tokens = served.stream("dragoman", min_new_tokens=5)
        first = await anext(tokens)
        await asyncio.wait_for(served.close(), 60)
        return [first, *[token async for token in tokens]]

    assert len(asyncio.run(main())) >= 5


def test_several_event_loops_share_a_model(bundle: Bundles, model: Models) -> None:
    expected = model("letters").generate(WORDS)
    served = asyncio.run(AsyncModel.load(bundle("letters"), workers=2, threads=1))

    async def work() -> Any:
        return await asyncio.gather(*(served.generate(WORDS) for _ in range(3)))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: asyncio.run(work()), range(4)))
    assert found == [[expected] * 3] * 4
    asyncio.run(served.close())


def test_a_stream_stays_in_the_event_loop_in_which_it_began(bundle: Bundles, gate: Gate) -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        served = first.run(AsyncModel.load(bundle("letters"), workers=1, threads=1))
        gate.shut()
        gate.let(1)
        tokens = served.stream("dragoman", min_new_tokens=5)
        first.run(_next(tokens))
        with pytest.raises(DragomanError, match=r"^stream: expected the event loop in which the"):
            second.run(_next(tokens))
        gate.let(10_000)
        second.run(assert_no_rows(served))
        second.run(served.close())
        with pytest.raises(ClosedModelError, match=r"^the model is closed: load it again$"):
            first.run(served.generate(["a"]))


async def _next(tokens: AsyncIterator[Token]) -> Token:
    return await anext(tokens)


def test_a_failing_backend_rejects_a_source_and_a_lost_device_ends_the_call(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(served: AsyncModel) -> None:
        start, error = served.model.backend.start, BackendError("no memory for this source")

        def failing(source: Any, *more: Any) -> Any:
            if source.shape[1] > 8 or isinstance(error, DeviceLostError):
                raise error
            return start(source, *more)

        monkeypatch.setattr(served.model.backend, "start", failing)
        good, bad = await served.generate(["a", "interpreter"])
        assert (good.error, bad.error) == (None, "no memory for this source")
        error = DeviceLostError("lost")  # type: ignore[assignment]
        with pytest.raises(UnfinishedError, match="lost") as lost:
            await served.generate(["", "a"])
        assert lost.value.finished.keys() == {0}

    run(bundle("letters"), work)


@pytest.mark.parametrize("loop_ends", [False, True])
def test_a_model_loaded_for_a_cancelled_task_is_closed(
    bundle: Bundles, monkeypatch: pytest.MonkeyPatch, loop_ends: bool
) -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    from dragoman.runtime import loading

    def slow(*arguments: Any, **options: Any) -> Model:
        begun.set()
        assert go_on.wait(60)
        made = loading.load(*arguments, **options)
        close = made.close

        def recorded() -> None:
            close()
            closed.set()

        monkeypatch.setattr(made, "close", recorded)
        return made

    monkeypatch.setattr("dragoman.runtime.serving.arrangement.load", slow)

    async def main() -> None:
        task = asyncio.ensure_future(AsyncModel.load(bundle("letters"), workers=1, threads=1))
        assert await asyncio.to_thread(begun.wait, 60)
        if loop_ends:
            return
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        assert await asyncio.to_thread(closed.wait, 60)

    asyncio.run(main())
    go_on.set()
    assert closed.wait(60)


def test_no_web_server_is_imported() -> None:
    code = (
        "import sys; from dragoman.runtime import AsyncModel\n"
        "print(sorted({'starlette', 'uvicorn', 'prometheus_client', 'anyio'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_a_path_in_place_of_a_model_names_the_way() -> None:
    directory: Any = "bundles/letters"
    with pytest.raises(DragomanError, match=r"expected a Model, found .*AsyncModel\.load"):
        AsyncModel(directory)
