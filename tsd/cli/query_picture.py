"""A picture of an answer in a file: `tsd query --graph`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import trio

from tsd.api.graph.picture import Picture, curve, read_picture
from tsd.api.graph.process import check_can_draw, draw_picture
from tsd.cli.query import GraphFile
from tsd.cli.query_output import Series
from tsd.codec.points import Float64, Int64
from tsd.config.files import exists, is_file
from tsd.config.loader import Loaded, state_folder
from tsd.daemon.settings import now_ms
from tsd.errors import TsdError
from tsd.lazy import LazyModule
from tsd.query.parse.times import read_time
from tsd.query.result import Answer

if TYPE_CHECKING:
    from tsd.cli import query_store as query_store
else:  # an answer over HTTP needs no store
    query_store = LazyModule("tsd.cli.query_store")

Line = tuple[str, Int64, Float64, int]  # label, times in ms, values, number of the sub query


def check(options: Mapping[str, Sequence[str]]) -> None:
    """Check the options of a picture, and that it can be drawn, before a query runs. Raise TsdError."""
    check_can_draw()
    read_picture(options, 0, 1)


def lines_of(answer: Answer) -> Iterable[Line]:
    """Yield the curves of an answer from the store."""
    for number, sub in enumerate(answer.subs):
        for group in sub.groups:
            name = Series(group.metric, group.tags, (), number).label
            yield name, group.points.times, group.points.doubles(), number


def series_lines(found: Iterable[Series]) -> Iterable[Line]:
    """Yield the curves of an answer over HTTP."""
    for series in found:
        times = np.array([time for time, _ in series.points], np.int64)
        values = np.array([float(value or "nan") for _, value in series.points], np.float64)
        yield series.label, times, values, series.sub_query


def draw_series(found: Sequence[Series], start: str, end: str, loaded: Loaded, graph: GraphFile) -> None:
    """Draw an answer over HTTP to a file. `start` and `end` are its texts. Raise TsdError."""
    now = now_ms()
    picture = read_picture(graph.picture, read_time(start, now), read_time(end, now) if end else now)
    trio.run(_draw, picture, series_lines(found), loaded, graph)


def draw_query(loaded: Loaded, words: Sequence[str], graph: GraphFile) -> None:
    """Run a query on the store and draw it to a file. Raise TsdError."""
    wanted = query_store.read_query(loaded.config, words)

    async def run() -> None:
        answer = await query_store.find(loaded.config, wanted)
        picture = read_picture(graph.picture, answer.query.start_ms, answer.query.end_ms)
        await _draw(picture, lines_of(answer), loaded, graph)

    trio.run(run)


async def _draw(picture: Picture, lines: Iterable[Line], loaded: Loaded, graph: GraphFile) -> None:
    """Draw curves to a file."""
    right = {number - 1 for number in graph.right}
    curves = [curve(name, times, values, picture, second=number in right) for name, times, values, number in lines]
    picture = msgspec.structs.replace(picture, kind=graph.kind, curves=curves)
    write_picture(graph.path, await draw_picture(picture, state_folder(loaded.config) / "matplotlib"))


def write_picture(path: Path, content: bytes) -> None:
    """Replace a file's content. If that fails, as on a full disk, an older file stays as it is. Write into a pipe or
    device. Raise TsdError."""
    target = path.resolve()
    draft = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        if exists(path) and not is_file(path):  # unresolved: a pipe such as /dev/stdout has no other name
            path.write_bytes(content)
            return
        draft.write_bytes(content)
        draft.replace(target)
    except OSError as exc:
        with suppress(OSError):
            draft.unlink()
        raise TsdError(f"--graph {path}: {exc.strerror or exc}") from exc
