"""What the device does during a call, and how that divides the time of a decoding step.

Kernels are timed by CUPTI through PyTorch's profiler, which sees the kernels of any library in the
process, those in CUDA graphs too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

LAUNCH_GAP = 20.0
"""The longest idle time, in microseconds, that is counted as a gap between two kernels that were
both enqueued already. If the device is idle for longer, the host had not enqueued the next one."""


class Activity(NamedTuple):
    """A kernel or a copy on the device: when it started and ended, in microseconds."""

    start: float
    end: float


def activities_of(call: Callable[[], object]) -> list[Activity]:
    """Record what the device does during a call.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: PyTorch finds no GPU.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch, whose profiler times the kernels, finds no GPU")
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return [
        Activity(event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type.name == "CUDA"
    ]


def split(activities: Iterable[Activity], ms_per_step: float, steps: int) -> dict[str, float]:
    """Divide the time of a decoding step, in milliseconds.

    Args:
        activities: everything that the device did in one call
        ms_per_step: of the same call without the profiler
        steps: of the call

    Returns:
        `kernels`: the device works; `launch gaps`: it goes from one kernel to the next; `host`: the
        rest, in which it waits for the host; and the number of `kernels per step`
    """
    busy = gaps = 0.0
    count, end = 0, None
    for activity in sorted(activities):
        count += 1
        if end is None:
            end = activity.start
        idle = activity.start - end
        gaps += idle if 0 < idle <= LAUNCH_GAP else 0.0
        busy += max(0.0, activity.end - max(end, activity.start))
        end = max(end, activity.end)
    kernels, launching = busy / steps / 1e3, gaps / steps / 1e3
    return {
        "kernels": round(kernels, 4),
        "kernels per step": round(count / steps, 1),
        "launch gaps": round(launching, 4),
        "host": round(max(0.0, ms_per_step - kernels - launching), 4),
    }
