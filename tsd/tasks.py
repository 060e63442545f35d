"""Where the tasks of a process wait, and where its threads are: for whoever has to find out why nothing comes forward.

Names of functions and numbers of lines; no values: tokens would be among them.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
import trio

log = structlog.get_logger(__name__)

MOST_LINES = 100  # of the log
THREAD_FRAMES = 8  # of each thread, the innermost
_TRIO = str(Path(trio.__file__).parent)


def tell_tasks() -> None:
    """Log where all tasks wait, and where threads are."""
    root = trio.lowlevel.current_root_task()
    tasks = list(waiting(root)) if root is not None else []
    left_out = len(tasks) - MOST_LINES
    log.info(
        "where tasks wait",
        tasks=tasks[:MOST_LINES],
        threads=list(at_work()),
        left_out=left_out if left_out > 0 else None,
    )


def waiting(task: trio.lowlevel.Task) -> Iterator[str]:
    """A task and those it has started, those deeper by two blanks: the calls that each is in, outermost first. Of tasks
    beside each other those that are alike are told once, with their number."""
    yield _name(_frames(task.coro))
    for nursery in task.child_nurseries:
        alike = Counter("\n".join(f"  {line}" for line in waiting(child)) for child in nursery.child_tasks)
        for lines, count in alike.items():
            first, *rest = lines.split("\n")
            yield first if count == 1 else f"{first} ({count} alike)"
            yield from rest


def at_work() -> Iterator[str]:
    """Threads other than the one that asks, but for trio's that have nothing to do: the calls that each is in."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread is threading.current_thread() or frame is None or frame.f_code.co_name == "_work":
            continue
        calls: list[FrameType] = []
        while frame is not None and len(calls) < THREAD_FRAMES:
            calls.append(frame)
            frame = frame.f_back
        yield f"{thread.name}: {' > '.join(_call(call) for call in reversed(calls))}"


def _name(frames: Iterator[FrameType]) -> str:
    """Calls, of trio's own only the first one."""
    calls = []
    for frame in frames:
        calls.append(_call(frame))
        if frame.f_code.co_filename.startswith(_TRIO) and len(calls) > 1:
            break
    return " > ".join(calls)


def _call(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}:{frame.f_lineno}"


def _frames(waiting: Any) -> Iterator[FrameType]:
    """Those of a coroutine that waits, from what it awaits, or iterates over, inwards."""
    while waiting is not None:
        kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(waiting, f"{kind}_frame")), None)
        if kind is None:
            return
        if (frame := getattr(waiting, f"{kind}_frame")) is not None:
            yield frame
        waiting = getattr(waiting, f"{kind}_yieldfrom" if kind == "gi" else f"{kind}_await")
