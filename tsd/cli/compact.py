"""`tsd compact`: one pass over the rows of closed hours, each of which becomes one cell."""

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import click
import trio

from tsd.assembly import now_ms
from tsd.cli.access import Access, access
from tsd.cli.options import with_config
from tsd.cli.progress import Progress
from tsd.codec.times import HOUR_S
from tsd.codec.uid import Kind
from tsd.codec.words import encode_name
from tsd.compaction.checkpoint import Checkpoint, Place
from tsd.compaction.configured import row_compactor
from tsd.compaction.sweep import Stretch, Sweep
from tsd.compaction.tally import Tally, in_words
from tsd.config import Backend, Config, Loaded, layout, state_folder
from tsd.errors import BadLine, CorruptRow, NoSuchName, StoreError, TsdError
from tsd.query.dates import BadDate, parse_date

CLOSED_S = 300  # after its end an hour's points have come, but for those of agents that were away
SAVE_S = 1.0  # between two notes of where the pass is, at least
DAEMON_REST = 1.0  # beside a daemon: as long as each part took, its agents have the store and the disk for themselves
SHOWN = 100  # rows told one by one


class Told:
    """Tells of what went wrong, beside the progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._count = 0

    def left(self, error: CorruptRow) -> None:
        """Tell of a row that is left, unless there are too many of them."""
        self._count += 1
        if self._count <= SHOWN:
            self._say(f"left as it is: {error}")
        if self._count == SHOWN:
            self._say("more such rows are only counted")

    def trouble(self, error: StoreError) -> None:
        """Tell of a store that will be asked again."""
        self._say(f"the store is asked again: {error}")

    def _say(self, text: str) -> None:
        with self._progress.aside():
            click.echo(f"tsd: {text}", err=True)


@click.command()
@click.argument("metrics", nargs=-1, metavar="[METRIC]...")
@click.option("--since", default="0", show_default=True, help="First hour: e.g. 2d-ago, 1700000000, 2023/11/14-22:00.")
@click.option(
    "--until", default="now", show_default=True, help="Hours that are over by then, and for five minutes now."
)
@click.option("--dry-run", is_flag=True, help="Write nothing; say what would become of the rows.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Rows a second, at most.")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Default: compact.json in the state folder.")
@with_config
def compact(
    loaded: Loaded,
    metrics: Sequence[str],
    since: str,
    until: str,
    dry_run: bool,
    rate: float | None,
    checkpoint: Path | None,
) -> None:
    """Make one cell of each row of METRICs, or of all, whose hour is over; points stay as they are read.

    It may be ended at any time, and run beside daemons and other passes. With the same arguments it goes on where it
    was ended. Exit status 1 where a row is corrupt, which is told and left as it is; 3 where the store fails for longer
    than a minute.
    """
    config = loaded.config
    store = config.thrift if config.backend is Backend.HBASE else ""
    asked = [config.backend.value, store, config.data_table, since, until, *sorted(set(metrics))]
    file = Checkpoint(checkpoint or state_folder(config) / "compact.json", asked)
    tally = trio.run(_run, config, None if dry_run else file, (since, until, metrics), rate)
    click.echo("\n".join(in_words(tally)))
    sys.exit(1 if tally.corrupt or tally.undecided else 0)


async def _run(
    config: Config, file: Checkpoint | None, words: tuple[str, str, Sequence[str]], rate: float | None
) -> Tally:
    """The pass, a dry one without a file; what it did, and what the one did that it goes on with."""
    since, until, metrics = words
    async with access(config, must_exist=True, writes=file is not None) as ways:
        if config.data_table not in await ways.store.tables():
            raise TsdError(f"there is no table {config.data_table} (tsd.storage.hbase.data_table)")
        with file.held() if file else nullcontext():
            place = file.load() if file else None
            if place is None:
                place = Place(_stretch(since, until, await _uids(ways, metrics)), b"", Tally())
            else:
                click.echo(f"tsd: going on after {place.tally.rows} rows, where the last pass was ended", err=True)
            progress = Progress("rows")
            try:
                return await _sweep(config, ways, file, place, rate, progress)
            finally:
                progress.close()


async def _sweep(
    config: Config, ways: Access, file: Checkpoint | None, place: Place, rate: float | None, progress: Progress
) -> Tally:
    told = Told(progress)
    compactor = row_compactor(config, ways.store, now_ms, told.left, dry=file is None)
    compactor.tally = place.tally
    rest = DAEMON_REST if config.backend is Backend.EMBEDDED and ways.daemon is not None else 0.0
    sweep = Sweep(
        ways.store, config.data_table, layout(config), compactor, now_ms, rate=rate, rest=rest, on_trouble=told.trouble
    )
    due_s = trio.current_time() + SAVE_S
    async for rows, position in sweep.run(place.stretch, place.position):
        progress.add(rows)
        if file is not None and trio.current_time() >= due_s:
            await trio.to_thread.run_sync(file.save, place._replace(position=position))
            due_s = trio.current_time() + SAVE_S
    if file is not None:
        await ways.store.sync()
        file.clear()
    return compactor.tally


def _stretch(since: str, until: str, metrics: list[bytes]) -> Stretch:
    """The hours that a command line asks for."""
    now = now_ms()
    try:
        first_s = parse_date(since, now) // 1000
        end_s = parse_date(until, now) // 1000
    except BadDate as exc:
        raise click.UsageError(str(exc)) from exc
    if end_s < first_s:
        raise click.UsageError(f"--until {until} is before --since {since}")
    over_s = min(end_s, now // 1000 - CLOSED_S)
    return Stretch(first_s // HOUR_S * HOUR_S, max(over_s - HOUR_S + 1, 0), tuple(sorted(metrics)))


async def _uids(ways: Access, metrics: Sequence[str]) -> list[bytes]:
    """UIDs of metrics; NoSuchName for one that has none."""
    try:
        names = [encode_name(metric) for metric in metrics]
    except BadLine as exc:
        raise click.UsageError(str(exc)) from exc
    found = await ways.uids.find(Kind.METRIC, names)
    uids: list[bytes] = []
    for name in dict.fromkeys(names):
        uid = found[name]
        if not isinstance(uid, bytes):
            raise uid if isinstance(uid, TsdError) else NoSuchName(name.decode("latin-1"))
        uids.append(uid)
    return uids
