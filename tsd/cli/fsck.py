"""`tsd fsck`: check the rows of the data table, and repair them."""

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import fields
from typing import Any

import click
import trio

from tsd.cli.context import Access, access, check_layout, flush_pending
from tsd.cli.late_rollups import changing_rows
from tsd.cli.options import closed_output_ignored, drop_output
from tsd.cli.output import Progress
from tsd.cli.scan import BadRequest, ScanRequest, parse_request, selected_rows
from tsd.codec.opentsdb.fsck import ERRORS, FsckLine, FsckOptions, totals
from tsd.config.loader import Loaded
from tsd.config.settings import Config
from tsd.daemon.settings import now_ms
from tsd.errors import DamagedBlock, TsdError
from tsd.store import Page, Row, Store
from tsd.store.damage import OnDamage, readable_pages
from tsd.tables.opentsdb.data_table import configured_data_table
from tsd.tables.opentsdb.fsck import Fsck, RowReport

_MISFIT = (
    "no row was found that this configuration can read, so whole rows are not deleted. Check tsd.storage.uid.width.*, "
    "tsd.storage.salt.* and the UID table. If all rows really are damaged, use --force"
)
PAGE_ROWS = 1000
_SUMMARY_ONLY = (FsckLine.VLE,)  # counted in the summary only: all cells of a table may be of this kind


def fsck(
    loaded: Loaded, words: Sequence[str], full_scan: bool, fix_all: bool, force: bool, as_json: bool, **flags: Any
) -> None:
    """Run `tsd fsck`."""
    check_layout(loaded.config)
    if not words and not full_scan:
        raise click.UsageError("Must supply a query or use the '--full-scan' flag")
    try:
        request = parse_request(words, now_ms()) if words and not full_scan else None
    except BadRequest as exc:
        raise click.UsageError(str(exc)) from exc
    report = _Report(as_json=as_json)
    # Otherwise queries would read other values after the repair.
    flags["last_write_wins"] |= loaded.config.fix_duplicates
    options = _options(fix_all=fix_all, **flags)

    async def run() -> None:
        started = trio.current_time()
        async with access(loaded.config, must_exist=True) as opened:
            await flush_pending(opened, delete=False)
            around = changing_rows(loaded.config, opened, deleted=True)
            check = Fsck(configured_data_table(loaded.config, opened.store), opened.uids, options, around)
            if options.deletes_rows and not force and not await check.matches_configuration():
                raise TsdError(_MISFIT)
            with Progress("rows") as progress:
                read_ms = now_ms()

                async def on_damage(error: DamagedBlock) -> bool:
                    result = await check.check_damaged(error)
                    report.print_row(result, progress)
                    return not result.skipped

                async for rows in _rows(opened, loaded.config, request, on_damage):
                    for result in await check.check(rows, read_ms=read_ms):
                        report.print_row(result, progress)
                    progress.add(len(rows))
                    read_ms = now_ms()
            if options.fix:
                await opened.store.sync()
        with closed_output_ignored():
            report.print_summary(round(trio.current_time() - started))

    try:
        trio.run(run)
    except BrokenPipeError as exc:
        drop_output()
        if options.fix:
            raise TsdError("the output has no reader any more: the rest is neither checked nor repaired") from exc
    sys.exit(1 if report.errors else 0)


def _options(*, fix_all: bool, **flags: Any) -> FsckOptions:
    chosen = {field.name: flags[field.name] for field in fields(FsckOptions) if field.name in flags}
    if fix_all:
        return FsckOptions.fix_all(last_write_wins=chosen["last_write_wins"])
    return FsckOptions(**chosen)


async def _rows(
    opened: Access, config: Config, request: ScanRequest | None, on_damage: OnDamage
) -> AsyncIterator[list[Row]]:
    async def scan(store: Store, table: str, start: bytes, stop: bytes | None) -> AsyncIterator[list[Row]]:
        async def read(at: bytes, end: bytes | None) -> Page:
            return await store.page(table, at, end, limit=PAGE_ROWS)

        async with aclosing(readable_pages(read, start, stop, on_damage)) as pages:
            async for page in pages:
                if page.rows:
                    yield page.rows

    if request is None:
        async for rows in scan(opened.store, config.data_table, b"", None):
            yield rows
        return
    table = configured_data_table(config, opened.store)
    for selection in request.selections:
        async for rows in selected_rows(table, opened.uids, request, selection, scan):
            yield rows


class _Report:
    """Prints findings as they are found, and counts them."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._counts: Counter[FsckLine] = Counter()
        self._left = 0

    @property
    def errors(self) -> int:
        """Number of errors found."""
        return totals(self._counts)[0]

    def print_row(self, result: RowReport, progress: Progress) -> None:
        """Print the findings of a row."""
        self._counts += result.check.counts
        self._left += bool(result.skipped)
        if text := list(self._json(result) if self._as_json else self._plain(result)):
            with progress.paused():
                click.echo("\n".join(text))

    def _json(self, result: RowReport) -> Iterator[str]:
        row = {"row": result.key.hex(), "series": result.series}
        for line, problem in result.check.findings:
            if line not in _SUMMARY_ONLY:
                finding = {"line": line.value, "error": line in ERRORS, "trouble": problem.trouble.value}
                yield json.dumps({**row, **finding, "qualifier": problem.qualifier.hex(), "detail": problem.detail})
        if result.skipped:
            yield json.dumps({**row, "left": result.skipped})

    def _plain(self, result: RowReport) -> Iterator[str]:
        row = f"row {result.key.hex()} {result.series}".rstrip()
        for line, problem in result.check.findings:
            if line not in _SUMMARY_ONLY:
                column = f" column {problem.qualifier.hex()}" if problem.qualifier else ""
                level = "ERROR" if line in ERRORS else "WARN"
                yield f"{level} {row}{column}: {problem.trouble.value}: {problem.detail}"
        if result.skipped:
            yield f"WARN {row}: not repaired: {result.skipped}"

    def print_summary(self, seconds: int) -> None:
        """Print the summary."""
        errors, correctable, fixed = totals(self._counts)
        if self._as_json:
            counts = {line.value: self._counts[line] for line in FsckLine}
            sums = {"errors": errors, "correctable": correctable, "fixed": fixed, "rows_left": self._left}
            click.echo(json.dumps({"counts": counts, **sums, "seconds": seconds}))
            return
        for line in FsckLine:
            click.echo(f"{line.value}: {self._counts[line]}")
        click.echo(f"Total Errors: {errors}\nTotal Correctable Errors: {correctable}\nTotal Errors Fixed: {fixed}")
        if self._left:
            click.echo(f"Rows left unchanged: {self._left}")
        click.echo(f"Completed fsck in [{seconds}] seconds")
