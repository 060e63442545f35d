"""`tsd fsck`: what is wrong with the rows of the data table, and how it is mended."""

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields
from typing import Any

import click
import trio

from tsd.assembly import now_ms
from tsd.cli.access import Access, access
from tsd.cli.options import with_config
from tsd.cli.progress import Progress
from tsd.codec.fsck import ERRORS, FsckOptions, Line, totals
from tsd.config import Config, Loaded, layout
from tsd.errors import TsdError
from tsd.fsck import Fsck, Verdict
from tsd.query.scanning import BadRequest, ScanRequest, parse_request, selected_rows
from tsd.store import Row, scan

_FLAGS = {
    "fix": "Mend what is found, as far as the flags below allow.",
    "compact": "Join the cells of every good row.",
    "resolve_duplicates": "Of points of one time, keep one.",
    "last_write_wins": "Keep the newest cell's, as readers do; with tsd.storage.fix_duplicates always so.",
    "delete_orphans": "Delete rows with UIDs that have no name.",
    "delete_unknown_columns": "Delete cells that nobody knows.",
    "delete_bad_values": "Delete points that are no numbers.",
    "delete_bad_rows": "Delete rows whose keys make no sense.",
    "delete_bad_compacts": "Delete cells of many points that cannot be taken apart.",
}
_MISFIT = (
    "no row was found that this configuration can read, so whole rows are not deleted. Are tsd.storage.uid.width.*, "
    "tsd.storage.salt.* and the UID table those of this table? If all rows are broken indeed: --force"
)
_UNCOUNTED = (Line.VLE,)  # told in the summary only: whole tables may be of them


def _flags(command: Callable[..., Any]) -> Callable[..., Any]:
    for name, text in reversed(_FLAGS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, is_flag=True, help=text)(command)
    return command


@click.command()
@click.argument("words", nargs=-1, metavar="[START [END] FUNC METRIC [TAGK=TAGV]...]")
@click.option("--full-scan", is_flag=True, help="Look at the whole table.")
@_flags
@click.option("--fix-all", is_flag=True, help="--fix and all of the flags above but --last-write-wins.")
@click.option("--force", is_flag=True, help="Delete rows even where no row makes sense with this configuration.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a finding, and one for the summary.")
@click.option("--threads", type=click.IntRange(1), hidden=True, help="OpenTSDB's; without effect.")
@click.option("--sync", is_flag=True, hidden=True, help="OpenTSDB's; every fix is waited for.")
@with_config
def fsck(
    loaded: Loaded, words: Sequence[str], full_scan: bool, fix_all: bool, force: bool, as_json: bool, **flags: Any
) -> None:
    """Find broken rows, of the whole table or of metrics and times as `tsd scan` takes them, and mend them.

    Without --fix or --fix-all nothing is changed. Daemons may go on writing. Exit status 1 where there are errors, also
    if all were mended.
    """
    if not words and not full_scan:
        raise TsdError("Must supply a query or use the '--full-scan' flag")
    try:
        request = parse_request(words, now_ms()) if words and not full_scan else None
    except BadRequest as exc:
        raise click.UsageError(str(exc)) from exc
    report = _Report(as_json=as_json)
    flags["last_write_wins"] |= loaded.config.fix_duplicates  # or a mended row would read otherwise than before
    options = _options(fix_all=fix_all, **flags)

    async def run() -> None:
        started = trio.current_time()
        async with access(loaded.config, must_exist=True, writes=options.fix) as ways:
            check = Fsck(ways.store, loaded.config.data_table, ways.uids, layout(loaded.config), options)
            if options.deletes_rows and not force and not await check.fits():
                raise TsdError(_MISFIT)
            with closing(Progress("rows")) as progress:
                read_ms = now_ms()
                async for rows in _rows(ways, loaded.config, request):
                    for verdict in await check.examine(rows, read_ms=read_ms):
                        report.tell(verdict, progress)
                    progress.add(len(rows))
                    read_ms = now_ms()
        report.sum_up(round(trio.current_time() - started))

    trio.run(run)
    sys.exit(1 if report.errors else 0)


def _options(*, fix_all: bool, **flags: Any) -> FsckOptions:
    chosen = {field.name: flags[field.name] for field in fields(FsckOptions) if field.name in flags}
    if fix_all:
        return FsckOptions.fix_all(last_write_wins=chosen["last_write_wins"])
    return FsckOptions(**chosen)


async def _rows(ways: Access, config: Config, request: ScanRequest | None) -> AsyncIterator[list[Row]]:
    if request is None:
        async for rows in scan(ways.store, config.data_table):
            yield rows
        return
    for selection in request.selections:
        async for rows in selected_rows(ways.store, config.data_table, ways.uids, layout(config), request, selection):
            yield rows


class _Report:
    """Tells findings as they come, and counts them."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._counts: Counter[Line] = Counter()
        self._left = 0

    @property
    def errors(self) -> int:
        """How many were found."""
        return totals(self._counts)[0]

    def tell(self, verdict: Verdict, progress: Progress) -> None:
        """Print what is wrong with a row."""
        self._counts += verdict.check.counts
        self._left += bool(verdict.left)
        if text := list(self._json(verdict) if self._as_json else self._plain(verdict)):
            with progress.aside():
                click.echo("\n".join(text))

    def _json(self, verdict: Verdict) -> Iterator[str]:
        row = {"row": verdict.key.hex(), "series": verdict.series}
        for line, problem in verdict.check.findings:
            if line not in _UNCOUNTED:
                told = {"line": line.value, "error": line in ERRORS, "trouble": problem.trouble.value}
                yield json.dumps({**row, **told, "qualifier": problem.qualifier.hex(), "detail": problem.detail})
        if verdict.left:
            yield json.dumps({**row, "left": verdict.left})

    def _plain(self, verdict: Verdict) -> Iterator[str]:
        row = f"row {verdict.key.hex()} {verdict.series}".rstrip()
        for line, problem in verdict.check.findings:
            if line not in _UNCOUNTED:
                column = f" column {problem.qualifier.hex()}" if problem.qualifier else ""
                level = "ERROR" if line in ERRORS else "WARN"
                yield f"{level} {row}{column}: {problem.trouble.value}: {problem.detail}"
        if verdict.left:
            yield f"WARN {row}: not mended: {verdict.left}"

    def sum_up(self, seconds: int) -> None:
        """Print the summary."""
        errors, correctable, fixed = totals(self._counts)
        if self._as_json:
            counts = {line.value: self._counts[line] for line in Line}
            all_of_it = {"errors": errors, "correctable": correctable, "fixed": fixed, "rows_left": self._left}
            click.echo(json.dumps({"counts": counts, **all_of_it, "seconds": seconds}))
            return
        for line in Line:
            click.echo(f"{line.value}: {self._counts[line]}")
        click.echo(f"Total Errors: {errors}\nTotal Correctable Errors: {correctable}\nTotal Errors Fixed: {fixed}")
        if self._left:
            click.echo(f"Rows left as they are: {self._left}")
        click.echo(f"Completed fsck in [{seconds}] seconds")
