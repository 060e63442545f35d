"""`tsd entity`: show entities and their newest values, change metadata, and build and check the tables of entities."""

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import click
import trio

from tsd.api.entity_answers import InventoryRequest, RangeRequest, select_series
from tsd.api.entity_inventory import Inventory
from tsd.api.entity_json import inventory_chunks, series_chunks
from tsd.cli.context import Access, access, flush_pending
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import Progress, tell_resumed
from tsd.codec.dates import BadDate, duration_ms, parse_date
from tsd.codec.entity.records import EntitySeries
from tsd.codec.metaline import check_entity
from tsd.codec.text import counted, encode_name
from tsd.config.loader import Loaded, name_rules, state_folder
from tsd.config.settings import Config
from tsd.daemon.layouts import build_configured_tables
from tsd.daemon.settings import now_ms
from tsd.daemon.wiring import store_address, versioned_cells
from tsd.errors import BadLine, TsdError
from tsd.store import VersionedCells
from tsd.store.cells import prefix_end
from tsd.store.versions import VersionColumns
from tsd.tables import Tables
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.entities import Entity
from tsd.tables.entity.building import Difference, EntityBuilder, EntityChecker
from tsd.tables.entity.layout import make_expiry, name_check
from tsd.tables.entity.tables import EntityTables
from tsd.tables.entity_decode import decode_rows, split_metadata
from tsd.tables.stored_windows import TimeRange, metrics_from

PAGE_ENTITIES = 500  # of one call of the store
SHOWN = 100  # differences that are printed one by one


class Opened(NamedTuple):
    """The tables of entities, and the store that has them."""

    access: Access
    cells: VersionedCells
    entities: EntityTables


def list_entities(loaded: Loaded, prefix: str, silent_for: str | None, as_json: bool) -> None:
    """Run `tsd entity list`."""
    first = _encoded("--prefix", prefix)
    oldest_ms = _oldest(silent_for)

    wanted = InventoryRequest(
        prefix=first,
        first=first,
        metrics=[],
        metric=None,
        is_descending=False,
        oldest_ms=oldest_ms,
        stale=oldest_ms is not None,
        limit=sys.maxsize,
    )

    async def run() -> list[VersionColumns]:
        async with _opened(loaded.config) as opened:
            await flush_pending(opened.access, delete=False)
            chosen = Inventory(wanted)
            at: bytes | None = first
            while at is not None:
                page = await opened.entities.newest_columns(at, prefix_end(first), limit=PAGE_ENTITIES)
                chosen.add(page.columns)
                at = page.next_start
            return chosen.pages

    pages = trio.run(run)
    if as_json:
        click.echo(b"".join(inventory_chunks(pages, None)))
        return
    found = [one for page in pages for one in decode_rows(page)]
    rows = [
        [_text(one.name), counted(len(one.series), "series", "series"), _with_age(_newest_ms(one))] for one in found
    ]
    _print_table(rows)


def show(
    loaded: Loaded, name: str, start: str, end: str | None, metrics: str, versions: int | None, as_json: bool
) -> None:
    """Run `tsd entity show`."""
    first_ms, end_ms = _time("--start", start), None if end is None else _time("--end", end)
    if end_ms is not None and end_ms <= first_ms:
        raise click.UsageError(f"got --start {start} and --end {end}, wanted an end after the start")
    patterns = [word for word in metrics.split(",") if word]
    wanted = RangeRequest(first_ms, end_ms, patterns, versions, None)
    key = _encoded("NAME", name)

    async def run() -> VersionColumns:
        async with _opened(loaded.config) as opened:
            await flush_pending(opened.access, delete=False)
            found = await opened.entities.read_columns(key, first_ms, end_ms, versions=versions)
            if not found.places and not (await opened.entities.newest(key, key + b"\0", limit=1)).entities:
                raise TsdError(f"unknown entity: {name}")
            return found

    metadata, columns = split_metadata(trio.run(run))
    chosen, omitted = select_series(columns, wanted)
    if as_json:
        click.echo(b"".join(series_chunks(key, metadata, chosen, omitted)))
        return
    for label, value in sorted(metadata.items()):
        click.echo(f"{label}: {value}")
    _print_table([row for one in decode_rows(chosen) for row in _series_rows(one)])


def set_metadata(loaded: Loaded, name: str, values: Sequence[str], as_json: bool) -> None:
    """Run `tsd entity set`."""
    pairs = [value.partition("=") for value in values]
    if wrong := [value for value, (key, equals, _) in zip(values, pairs, strict=True) if not key or not equals]:
        raise click.UsageError(f"got {wrong[0]!r}, wanted KEY=VALUE")
    metadata = {_encoded("KEY", key): value for key, _, value in pairs}

    async def edit(opened: Opened) -> None:
        await opened.entities.put_metadata(_encoded("NAME", name), metadata, now_ms())

    _edit(loaded.config, name, edit, as_json=as_json)


def delete_metadata(loaded: Loaded, name: str, keys: Sequence[str], every: bool, as_json: bool) -> None:
    """Run `tsd entity unset`."""
    if every == bool(keys):
        raise click.UsageError("got no KEY and no --all, or both: wanted one of them")
    wanted = {_encoded("KEY", key) for key in keys}

    async def edit(opened: Opened) -> None:
        stored = {key.encode("latin-1") for key in await opened.entities.metadata(_encoded("NAME", name))}
        if missing := wanted - stored:
            raise TsdError(f"entity {name} has no metadata {', '.join(map(_text, sorted(missing)))}")
        await opened.entities.delete_metadata(_encoded("NAME", name), wanted or stored)

    _edit(loaded.config, name, edit, as_json=as_json)


def _edit(config: Config, name: str, edit: Callable[[Opened], Awaitable[None]], *, as_json: bool) -> None:
    """Change metadata, after that which a daemon has taken."""

    async def run() -> Mapping[str, str]:
        check_entity(_encoded("NAME", name), name_rules(config).extra)
        async with _opened(config) as opened:
            await opened.access.require_flush("Metadata among them would be overlooked: nothing changed")
            await edit(opened)
            await opened.access.store.sync()
            return await opened.entities.metadata(_encoded("NAME", name))

    try:
        metadata = trio.run(run)
        if as_json:
            click.echo(json.dumps({"entity": name, "metadata": dict(sorted(metadata.items()))}))
    except BadLine as error:
        raise click.UsageError(str(error)) from error


class BuildState(NamedTuple):
    """A build or a check in progress."""

    since_ms: int
    until_ms: int
    metric: str = ""  # the last one that is done
    points: int = 0
    wrong: int = 0
    warnings: int = 0


def build(
    loaded: Loaded, metrics: Sequence[str], since: str, until: str, checkpoint: Path | None, as_json: bool
) -> None:
    """Run `tsd entity build`."""
    state = trio.run(_run, _Job(loaded.config, "build", metrics, since, until, checkpoint))
    with closed_output_ignored():
        if as_json:
            click.echo(json.dumps({"points": state.points, "warnings": state.warnings}))
        else:
            click.echo(f"{counted(state.points, 'point')} read and written")
    sys.exit(1 if state.warnings else 0)


def check(
    loaded: Loaded, metrics: Sequence[str], since: str, until: str, checkpoint: Path | None, as_json: bool
) -> None:
    """Run `tsd entity check`."""
    state = trio.run(_run, _Job(loaded.config, "check", metrics, since, until, checkpoint))
    with closed_output_ignored():
        if as_json:
            click.echo(json.dumps({"points": state.points, "differences": state.wrong, "warnings": state.warnings}))
        else:
            click.echo(f"{counted(state.points, 'point')} compared, {counted(state.wrong, 'difference')}")
    sys.exit(1 if state.wrong or state.warnings else 0)


class _Job(NamedTuple):
    """What a command line asks for."""

    config: Config
    kind: str  # build or check
    metrics: Sequence[str]
    since: str
    until: str
    checkpoint: Path | None

    @property
    def file(self) -> Checkpoint:
        """Where the job resumes."""
        config = self.config
        words = [self.kind, config.backend.value, store_address(config), config.data_table, config.entity_tag]
        path = self.checkpoint or state_folder(config) / f"entity-{self.kind}.json"
        return Checkpoint(path, [*words, self.since, self.until, *sorted(set(self.metrics))])


class _Output:
    """Progress, warnings and differences of a job."""

    def __init__(self, state: BuildState, progress: Progress) -> None:
        self.state = state
        self._progress = progress
        self._shown = 0

    def add_points(self, points: int) -> None:
        self._progress.add(points)
        self.state = self.state._replace(points=self.state.points + points)

    def warn(self, text: str) -> None:
        self.state = self.state._replace(warnings=self.state.warnings + 1)
        self._show(text)

    def add_differences(self, found: Iterable[Difference]) -> None:
        for one in found:
            self.state = self.state._replace(wrong=self.state.wrong + 1)
            self._show(str(one))

    def _show(self, text: str) -> None:
        self._shown += 1
        if self._shown <= SHOWN:
            with self._progress.paused():
                click.echo(f"tsd: {text}", err=True)


async def _run(job: _Job) -> BuildState:
    """Build or check metric after metric."""
    since_ms, until_ms = _time("--since", job.since), _time("--until", job.until)
    if until_ms <= since_ms:
        raise click.UsageError(f"got --since {job.since} and --until {job.until}, wanted an end after the start")
    async with _opened(job.config) as opened:
        await opened.access.require_flush("They would be left out: nothing done")
        await opened.entities.create()
        await opened.entities.check()
        tables = build_configured_tables(job.config, opened.access.store, now_ms)
        with job.file.lock():
            state = _load(job.file) or BuildState(since_ms, until_ms)
            if state.metric:
                tell_resumed(f"the metric {state.metric}", state.since_ms, state.until_ms)
            with Progress("points") as progress:
                return await _work(job, opened, tables, _Output(state, progress))


async def _work(job: _Job, opened: Opened, tables: Tables, output: _Output) -> BuildState:
    state = output.state
    span = TimeRange(state.since_ms, state.until_ms)
    tag = job.config.entity_tag.encode("latin-1")
    callbacks = output.add_points, output.warn, name_check(job.config)
    builder = EntityBuilder(tables.reader, opened.cells, tag, *callbacks)
    kept_from_ms = make_expiry(job.config, now_ms).kept_from_ms
    settle = opened.access.flush_daemon
    checker = EntityChecker(tables.reader, opened.cells, tag, settle, *callbacks, kept_from_ms=kept_from_ms)
    if job.kind == "check":
        await checker.begin(span)  # then the metrics: a daemon's new ones come to the layout's tables first
    known = sorted(set(job.metrics)) or await tables.catalog.metrics()
    for metric in metrics_from(known, state.metric):
        if job.kind == "build":
            await builder.run(metric, span)
            await opened.access.store.sync()
        else:
            output.add_differences(await checker.run(metric, span))
        output.state = output.state._replace(metric=metric)
        await trio.to_thread.run_sync(job.file.save, output.state._asdict())
    if job.kind == "check" and not job.metrics:
        output.add_differences(checker.unknown(known))
    job.file.clear()
    return output.state


def _load(file: Checkpoint) -> BuildState | None:
    """Return the job to resume, None if there is none. Raise TsdError."""
    saved = file.load()
    try:
        return None if saved is None else BuildState(**saved)
    except TypeError:
        return None


@asynccontextmanager
async def _opened(config: Config) -> AsyncIterator[Opened]:
    """Open the tables of entities. Raise TsdError."""
    if not config.entity:
        raise TsdError(
            "the tables of entities are not kept: got tsd.entity.enabled = false in this command's configuration"
        )
    async with access(config, must_exist=True, any_layout=True) as opened:
        cells = versioned_cells(config, opened.store)
        yield Opened(opened, cells, EntityTables(cells, check_name=name_check(config)))


def _time(option: str, text: str) -> int:
    try:
        return max(parse_date(text, now_ms()), 0)
    except BadDate as exc:
        raise click.UsageError(f"{option}: {exc}") from exc


def _oldest(age: str | None) -> int | None:
    try:
        return None if age is None else now_ms() - duration_ms(age)
    except (BadDate, ValueError) as exc:
        raise click.UsageError(f"--silent: got {age!r}, wanted e.g. 10m") from exc


def _encoded(what: str, text: str) -> bytes:
    try:
        return encode_name(text)
    except BadLine as exc:
        raise click.UsageError(f"{what}: got {text!r}, wanted characters up to U+00FF") from exc


def _text(name: bytes) -> str:
    return name.decode("latin-1")


def _newest_ms(found: Entity) -> int:
    return max((points[-1][0] for points in found.series.values() if points), default=0)


def _with_age(time_ms: int) -> str:
    """Return a time in UTC, and how long ago it was."""
    from_now_s = (now_ms() - time_ms) // 1000
    return f"{_iso(time_ms)} ({from_now_s} s ago)"


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _series_rows(found: Entity) -> list[list[str]]:
    """Return a line for each series: its name, how many points it has, and the newest one."""
    rows = []
    for series in sorted(found.series):
        points = found.series[series]
        rows.append([_series_name(series), counted(len(points), "point"), _iso(points[-1][0]), str(points[-1][1])])
    return rows


def _series_name(series: EntitySeries) -> str:
    return " ".join([_text(series.metric), *(f"{_text(tagk)}={_text(tagv)}" for tagk, tagv in series.tags)])


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print lines whose columns are aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        click.echo("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
