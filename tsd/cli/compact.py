"""`tsd compact`: one pass that compacts each row of the closed hours to one cell."""

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import click
import trio

from tsd.cli.context import Access, access, metric_uids
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import Progress, tell_resumed
from tsd.codec.dates import BadDate, parse_date
from tsd.codec.putline import HOUR_S
from tsd.codec.text import counted
from tsd.config.loader import Loaded, state_folder
from tsd.config.settings import Config
from tsd.daemon.layouts import hour_folding, row_compactor
from tsd.daemon.settings import now_ms
from tsd.daemon.wiring import store_address
from tsd.errors import CorruptRow, DamagedBlock, StoreError, TsdError
from tsd.tables.checkpoint import Checkpoint
from tsd.tables.opentsdb.compaction.compactor import CompactionStats, summary
from tsd.tables.opentsdb.compaction.sweep import Sweep, SweepRange, SweepState, load_state, save_state
from tsd.tables.opentsdb.data_table import configured_data_table

CLOSED_S = 300  # after the end of an hour, for late points
SAVE_S = 1.0  # shortest interval between saves of the position
SHOWN = 100  # corrupt rows printed one by one


class _Messages:
    """Prints corrupt rows and store errors above the progress bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._count = 0

    def on_corrupt(self, error: CorruptRow) -> None:
        """Print a row that is left unchanged, up to SHOWN rows."""
        self._count += 1
        if self._count <= SHOWN:
            self._print(f"row left unchanged: {error}")
        if self._count == SHOWN:
            self._print("more such rows are only counted")

    def on_damage(self, error: DamagedBlock) -> None:
        """Print an hour of a metric that is left unchanged."""
        self._print(f"hour left unchanged from here on: {error}")

    def on_retry(self, error: StoreError) -> None:
        """Print a store error that is retried."""
        self._print(f"retrying: {error}")

    def _print(self, text: str) -> None:
        with self._progress.paused():
            click.echo(f"tsd: {text}", err=True)


def compact(
    loaded: Loaded,
    metrics: Sequence[str],
    since: str,
    until: str,
    dry_run: bool,
    rate: float | None,
    checkpoint: Path | None,
    as_json: bool,
) -> None:
    """Run `tsd compact`."""
    config = loaded.config
    _range(since, until, [])  # reports wrong times before the store is opened
    job = [config.backend.value, store_address(config), config.data_table, since, until, *sorted(set(metrics))]
    file = Checkpoint(checkpoint or state_folder(config) / "compact.json", job)
    stats = trio.run(_run, config, None if dry_run else file, (since, until, metrics), rate)
    with closed_output_ignored():
        click.echo(json.dumps(asdict(stats)) if as_json else "\n".join(summary(stats)))
    sys.exit(1 if stats.corrupt or stats.undecided else 0)


async def _run(
    config: Config, file: Checkpoint | None, words: tuple[str, str, Sequence[str]], rate: float | None
) -> CompactionStats:
    """Run the pass, a dry run without a file. Return its statistics, including those of the run that it resumes."""
    since, until, metrics = words
    async with access(config, must_exist=True) as opened:
        if config.data_table not in await opened.store.tables():
            raise TsdError(f"there is no table {config.data_table} (tsd.storage.hbase.data_table)")
        with file.lock() if file else nullcontext():
            state = load_state(file) if file else None
            if state is None:
                state = SweepState(_range(since, until, await metric_uids(opened, metrics)), b"", CompactionStats())
            else:
                span = state.range
                tell_resumed(counted(state.stats.rows, "row"), span.since_s * 1000, span.until_s * 1000)
            with Progress("rows") as progress:
                return await _sweep(config, opened, file, state, rate, progress)


async def _sweep(
    config: Config, opened: Access, file: Checkpoint | None, state: SweepState, rate: float | None, progress: Progress
) -> CompactionStats:
    messages = _Messages(progress)
    compactor = row_compactor(config, opened.store, now_ms, messages.on_corrupt, dry=file is None)
    compactor.stats = state.stats
    folding = None if file is None else hour_folding(config, opened.store)

    async def fold(prefix: bytes) -> None:
        if folding is not None:
            await folding.fold_old(prefix, now_ms() // 1000)

    sweep = Sweep(
        configured_data_table(config, opened.store),
        compactor,
        rate=rate,
        pause_ratio=opened.pause_ratio,
        on_retry=messages.on_retry,
        on_damage=messages.on_damage,
        fold=fold,
    )
    due_s = trio.current_time() + SAVE_S
    async for rows, position in sweep.run(state.range, state.position):
        progress.add(rows)
        if file is not None and trio.current_time() >= due_s:
            await trio.to_thread.run_sync(save_state, file, state._replace(position=position))
            due_s = trio.current_time() + SAVE_S
    if file is not None:
        await opened.store.sync()
        file.clear()
    return compactor.stats


def _range(since: str, until: str, metrics: list[bytes]) -> SweepRange:
    """Return the range of a command line."""
    now = now_ms()
    try:
        first_s = parse_date(since, now) // 1000
        end_s = parse_date(until, now) // 1000
    except BadDate as exc:
        raise click.UsageError(str(exc)) from exc
    if end_s < first_s:
        raise click.UsageError(f"--until {until} is before --since {since}")
    ended_s = min(end_s, now // 1000 - CLOSED_S)
    return SweepRange(first_s // HOUR_S * HOUR_S, max(ended_s - HOUR_S + 1, 0), tuple(sorted(metrics)))
