"""/api/stats and its subpaths, and /stats: the daemon's numbers, as OpenTSDB gives them away."""

import platform
import resource
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tsd.api.messages import answer, check_method
from tsd.doors.exchange import TEXT, Endpoint, Request, Response
from tsd.stats import Stat, as_points, render


def routes(
    statistics: Callable[[], Sequence[Stat]],
    tags: Callable[[], str],
    now_ms: Callable[[], int],
    gateways: Callable[[], Sequence[Mapping[str, Any]]],
) -> dict[str, Endpoint]:
    """`tags` are those of all lines; `gateways` gives what there is to tell of each server that the store speaks with.
    /api/stats/query is an endpoint of `tsd.api.query`."""

    async def api(request: Request) -> Response:
        check_method(request, "GET", "POST")
        what = request.segments[1].lower() if len(request.segments) > 1 else ""
        if what == "region_clients":
            return answer(gateways())
        if what == "threads":
            return answer(_threads())
        if what == "jvm":
            return answer(_process(now_ms()))
        return answer(as_points(statistics(), now_ms() // 1000, tags()))

    async def text(request: Request) -> Response:
        check_method(request, "GET", "POST")
        lines = render(statistics(), now_ms() // 1000, tags())
        if request.has("json"):
            return answer(lines.decode().splitlines())
        return Response(200, lines, TEXT)

    return {"api/stats": api, "stats": text}


def _threads() -> list[dict[str, object]]:
    """The threads of the process, with where each one is: names of functions, the outermost first."""
    frames = sys._current_frames()
    found: list[dict[str, object]] = []
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        stack: list[str] = []
        while frame is not None:
            stack.append(f"{frame.f_globals.get('__name__', '')}.{frame.f_code.co_name}({frame.f_lineno})")
            frame = frame.f_back
        state = "RUNNABLE" if thread.is_alive() else "TERMINATED"
        found.append(
            {
                "threadID": thread.ident,
                "name": thread.name,
                "state": state,
                "interrupted": False,
                "priority": 5,
                "stack": stack,
            }
        )
    return found


def _process(now_ms: int) -> dict[str, object]:
    """What OpenTSDB tells of its Java machine, as far as a process of Python has it."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "memory": {"heapMemoryUsage": {"max": usage.ru_maxrss << 10}},
        "os": {"systemLoadAverage": _load()},
        "runtime": {
            "name": platform.python_implementation(),
            "vmVersion": platform.python_version(),
            "vmVendor": platform.python_compiler(),
            "cpuTime": int((usage.ru_utime + usage.ru_stime) * 1000),
            "time": now_ms,
        },
        "pools": {},
        "gc": {},
    }


def _load() -> float:
    with open("/proc/loadavg") as file:
        return float(file.read().split()[0])
