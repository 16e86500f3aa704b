"""Requests that arrive over time join the running batch: the runtime's decoding loop, which a
server would use.
"""

from __future__ import annotations

from contextlib import closing

from dragoman.runtime import GenerationOptions, Model
from dragoman.runtime.decoding.loop import IDLE_SHARE, DecodingLoop, Job
from dragoman.runtime.texts.plan import TextPlan

from .requests import Answer, Queue, WaitingRoom


def answer_as_they_arrive(model: Model, queue: Queue) -> list[Answer]:
    """Decode every request, in the company of those that are there when it arrives."""
    manifest, most = model.manifest, queue.max_batch_size
    jobs = []
    for index, (source, new_tokens, _) in enumerate(queue.requests):
        plan = TextPlan.of(GenerationOptions(max_new_tokens=new_tokens), manifest, None)
        jobs.append(Job(index, plan.request(source), plan.strategies[0]))
    answers: dict[int, Answer] = {}
    room = WaitingRoom(queue.requests)
    loop: DecodingLoop[int] = DecodingLoop(
        model.backend,
        manifest.model,
        width=1,
        capacity=max(job.request.capacity for job in jobs),
    )
    with closing(loop):
        while len(answers) < len(jobs):
            running, ended = len(loop.running), []
            # As in the runtime's queue: several together, unless there is room for all.
            if most - running >= most * IDLE_SHARE:
                arrived = room.take(most - running, wait=not running)
                ended = loop.admit([jobs[index] for index in arrived]) if arrived else []
            loop.compact()
            for decoding in [*ended, *loop.step()]:
                answers[decoding.job.key] = Answer(list(decoding.drafts[0].tokens), room.now)
    return [answers[index] for index in range(len(jobs))]
