"""`tsd rollup build`: write rollups of past points."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import trio

from tsd.cli.context import Access, access, metric_uids
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import Progress, tell_resumed
from tsd.codec.dates import BadDate, parse_date
from tsd.codec.text import counted
from tsd.config.loader import Loaded, state_folder
from tsd.config.settings import Config
from tsd.daemon.diagnostics import tune_malloc
from tsd.daemon.layouts import rollup_builder
from tsd.daemon.settings import now_ms
from tsd.daemon.wiring import rollup_tables, store_address
from tsd.store import check_tables
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.opentsdb.rollup_progress import START, BuildPosition, BuildRange
from tsd.tables.reading import ScanRange

CLOSED_S = 300  # after the end of an interval, for late points
SAVE_S = 1.0  # shortest interval between saves of the position
SHOWN = 100  # warnings printed one by one


class BuildState(NamedTuple):
    """A build in progress."""

    range: BuildRange
    position: BuildPosition
    points: int = 0
    cells: int = 0
    warnings: int = 0


class _Job(NamedTuple):
    """The options of a command line."""

    metrics: Sequence[str]
    start: str
    end: str
    intervals: Sequence[str]
    pause: float | None
    clear: bool


def build(
    loaded: Loaded,
    metrics: Sequence[str],
    start: str,
    end: str,
    intervals: Sequence[str],
    pause: float | None,
    clear: bool,
    checkpoint: Path | None,
    as_json: bool,
) -> None:
    """Run `tsd rollup build`."""
    config = loaded.config
    if clear and not metrics:
        raise click.UsageError("got --clear without a metric, wanted those whose points were deleted")
    job = _Job(tuple(sorted(set(metrics))), start, end, intervals, pause, clear)
    _range(job, [])  # reports wrong times before the store is opened
    words = [config.backend.value, store_address(config), config.data_table, start, end, ",".join(intervals)]
    words += [config.rollups_config, *(["--clear"] if clear else [])]
    file = Checkpoint(checkpoint or state_folder(config) / "rollup-build.json", [*words, *job.metrics])
    tune_malloc()
    done = trio.run(_run, config, file, job)
    with closed_output_ignored():
        if as_json:
            click.echo(json.dumps({"points": done.points, "cells": done.cells, "warnings": done.warnings}))
        else:
            click.echo(f"{counted(done.points, 'point')} read, {counted(done.cells, 'rollup')} written")
    sys.exit(1 if done.warnings else 0)


async def _run(config: Config, file: Checkpoint, job: _Job) -> BuildState:
    async with access(config, must_exist=True) as opened:
        await check_tables(opened.store, [config.data_table, *rollup_tables(config)])
        await opened.require_flush("Rollups would lack them: nothing built")
        with file.lock():
            state = _load(file)
            if state is None:
                state = BuildState(_range(job, await metric_uids(opened, job.metrics)), START)
            else:
                span = state.range
                tell_resumed(counted(state.points, "point"), span.first_s * 1000, span.end_s * 1000)
            with Progress("points") as progress:
                return await _build(config, opened, file, state, job, progress)


async def _build(
    config: Config, opened: Access, file: Checkpoint, state: BuildState, job: _Job, progress: Progress
) -> BuildState:
    warnings: list[str] = []

    def show(text: str) -> None:
        with progress.paused():
            click.echo(f"tsd: {text}", err=True)

    def warn(text: str) -> None:
        warnings.append(text)
        if len(warnings) <= SHOWN:
            show(text)

    builder = rollup_builder(
        config, opened.store, opened.uids, job.intervals, now_ms,
        pause_ratio=opened.pause_ratio if job.pause is None else job.pause,
        on_retry=lambda error: show(f"retrying: {error}"), on_warning=warn,
    )  # fmt: skip
    before, due_s = state.warnings, trio.current_time()
    if job.clear and state.position == START:  # not after a part was built
        for metric in state.range.metrics:
            await builder.clear(metric, ScanRange(state.range.first_s, state.range.end_s))
    async for step in builder.run(state.range, state.position):
        progress.add(step.points)
        state = BuildState(
            state.range, step.position, state.points + step.points, state.cells + step.cells, before + len(warnings)
        )
        if trio.current_time() >= due_s:
            await trio.to_thread.run_sync(_save, file, state)
            due_s = trio.current_time() + SAVE_S
    file.clear()
    return state._replace(warnings=before + len(warnings))


def _range(job: _Job, metrics: Sequence[bytes]) -> BuildRange:
    """Return the range of a command line."""
    now = now_ms()
    try:
        first_s, end_s = (parse_date(word, now) // 1000 for word in (job.start, job.end))
    except BadDate as exc:
        raise click.UsageError(str(exc)) from exc
    if end_s < first_s:
        raise click.UsageError(f"--end {job.end} is before --start {job.start}")
    return BuildRange(first_s, min(end_s, now // 1000 - CLOSED_S), tuple(sorted(metrics)))


def _save(file: Checkpoint, state: BuildState) -> None:
    """Raise TsdError."""
    span = state.range
    file.save(
        {
            "range": [span.first_s, span.end_s, [metric.hex() for metric in span.metrics]],
            "position": [state.position.metric.hex(), state.position.day_s],
            "counts": [state.points, state.cells, state.warnings],
        }
    )


def _load(file: Checkpoint) -> BuildState | None:
    """Return the build to resume, None if there is none. Raise TsdError."""
    saved = file.load()
    try:
        return None if saved is None else _decode(saved)
    except (ValueError, KeyError, TypeError):
        return None


def _decode(saved: Mapping[str, Any]) -> BuildState:
    first_s, end_s, metrics = saved["range"]
    metric, day_s = saved["position"]
    for number in (first_s, end_s, day_s, *saved["counts"]):
        if not isinstance(number, int):
            raise TypeError(f"got {number!r}, wanted an integer")
    span = BuildRange(first_s, end_s, tuple(map(bytes.fromhex, metrics)))
    return BuildState(span, BuildPosition(bytes.fromhex(metric), day_s), *saved["counts"])
