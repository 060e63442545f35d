"""`tsd uid` and `tsd mkmetric`: look up and assign UIDs, printed like OpenTSDB's tool.

`tsd uid rename`, `delete`, `fsck` and `report`: change, repair and monitor the UID table.
"""

import json
import re
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import trio

from tsd.cli.context import Access, access
from tsd.cli.options import closed_output_ignored
from tsd.cli.output import Progress
from tsd.codec.dates import MOST_DIGITS
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import COUNTER_ROW, encode_uid, id_column
from tsd.codec.opentsdb.uid_fsck import UidCheck
from tsd.codec.text import counted, encode_name, illegal_character, show_signed
from tsd.config.loader import Loaded, key_layout
from tsd.config.settings import Config
from tsd.daemon.settings import now_ms
from tsd.errors import BadLine, NoSuchName, TsdError
from tsd.store import scan
from tsd.tables.opentsdb.kept_rollups import has_rows
from tsd.tables.opentsdb.uid_table import WINDOWS, UidFsck, UidRepair, UidUsage, delete, rename, usages

KINDS = [kind.value for kind in Kind]
LONGEST_DAYS = 36525  # longest time shown exactly
MAX_STATUS = 255  # largest exit status


def checked_name(kind: Kind, word: str, config: Config) -> bytes:
    """Return a name's bytes. Unlike OpenTSDB's tool, accept only names that a point can have."""
    name = any_name(word)
    odd = illegal_character(name, config.allow_specialchars.encode("latin-1"))
    if not name or odd:
        raise click.UsageError(f'Invalid {kind.value} ("{word}"): illegal character: {odd or "none at all"}')
    return name


def any_name(word: str) -> bytes:
    """Return the bytes of an existing name, which may have illegal characters."""
    try:
        return encode_name(word)
    except BadLine as exc:
        raise click.UsageError(str(exc)) from exc


def rename_uid(loaded: Loaded, kind: str, old: str, new: str, as_json: bool) -> None:
    """Run `tsd uid rename`."""
    config = loaded.config
    before, after = any_name(old), checked_name(Kind(kind), new, config)

    async def run() -> None:
        async with access(config, must_exist=True) as opened:
            found = await opened.uids.find(Kind(kind), [before])
            if isinstance(found[before], bytes):
                await opened.require_flush("These points would be stored under the old name: nothing renamed")
            await rename(opened.store, config.uid_table, Kind(kind), before, after)
            await _drop_daemon_caches(opened)

    trio.run(run)
    click.echo(json.dumps({"kind": kind, "old": old, "new": new}) if as_json else f"{kind} {old} -> {new}")


def delete_uid(loaded: Loaded, kind: str, name: str, as_json: bool) -> None:
    """Run `tsd uid delete`."""
    config = loaded.config

    async def run() -> tuple[bytes, bool]:
        async with access(config, must_exist=True) as opened:
            found = await delete(opened.store, config.uid_table, Kind(kind), any_name(name))
            await _drop_daemon_caches(opened)
            if Kind(kind) is not Kind.METRIC:
                return found, False  # a tag may be in any row
            await opened.flush_daemon()  # what it holds has the deleted UID; what only the journal has gets a new one
            return found, await has_rows(opened.store, key_layout(config), config.data_table, found)

    found, rows_left = trio.run(run)
    deleted = {"kind": kind, "name": name, "uid": found.hex(), "deleted": True}
    click.echo(json.dumps(deleted) if as_json else f"UID {kind} {name}: {show_signed(found)} deleted.")
    if rows_left:
        click.echo(
            "tsd: it has rows, now without a name: tsd fsck --full-scan --fix --delete-orphans deletes them", err=True
        )


def fsck_uids(loaded: Loaded, words: Sequence[str], fix: bool, delete_unknown: bool, as_json: bool) -> None:
    """Run `tsd uid fsck`."""
    config = loaded.config
    found: list[tuple[UidCheck, UidRepair | None]] = []

    async def run() -> None:
        async with access(config, must_exist=True) as opened:
            widths = key_layout(config).widths
            table = UidFsck(opened.store, config.uid_table, widths, now_ms, random_metrics=config.random_metrics)
            with Progress("rows") as progress:
                if fix or "fix" in words:
                    unknown = delete_unknown or "delete_unknown" in words
                    found.append(await table.repair(progress.add, delete_unknown=unknown))
                    await _drop_daemon_caches(opened)
                else:
                    found.append((await table.check(progress.add), None))

    trio.run(run)
    [(check, repair)] = found
    with closed_output_ignored():
        click.echo(_json(check, repair) if as_json else "\n".join(_plain(check, repair)))
    sys.exit(min(check.errors, MAX_STATUS))


def _json(check: UidCheck, repair: UidRepair | None) -> str:
    findings = [
        {"kind": one.kind and one.kind.value, "error": one.is_error, "detail": one.text} for one in check.findings
    ]
    report: dict[str, object] = {"findings": findings, "errors": check.errors}
    if repair is not None:
        raised = {kind.value: by for kind, by in repair.raised.items()}
        report |= {"written": repair.written, "deleted": repair.deleted, "raised": raised, "left": repair.left}
    return json.dumps(report)


def _plain(check: UidCheck, repair: UidRepair | None) -> Iterator[str]:
    yield "Running in log only mode" if repair is None else "Repairing what is found"
    for one in check.findings:
        yield f"{'ERROR' if one.is_error else 'WARN'} {one.kind.value + ': ' if one.kind else ''}{one.text}"
    if repair is not None:
        for text in repair.left:
            yield f"WARN not repaired: {text}"
        raised = counted(len(repair.raised), "counter")
        yield f"{counted(repair.written, 'cell')} written, {repair.deleted} deleted, {raised} raised"
    yield f"{counted(check.errors, 'error')} found." if check.errors else "No errors found."


def report(loaded: Loaded, as_json: bool) -> None:
    """Run `tsd uid report`."""
    config = loaded.config
    found: list[UidUsage] = []

    async def run() -> None:
        async with access(config, must_exist=True) as opened:
            with Progress("rows") as progress:
                found.extend(
                    await usages(
                        opened.store,
                        config.uid_table,
                        key_layout(config).widths,
                        now_ms(),
                        random_metrics=config.random_metrics,
                        on_rows=progress.add,
                    )
                )

    trio.run(run)
    if as_json:
        click.echo(json.dumps({usage.kind.value: _numbers(usage) for usage in found}))
    else:
        for usage in found:
            click.echo(_sentence(usage))


def _numbers(usage: UidUsage) -> dict[str, object]:
    numbers = {"used": usage.used, "left": usage.left, "capacity": usage.capacity, "named": usage.named}
    recent = {f"new_in_{days}_days": usage.recent[days] for days in WINDOWS}
    return {**numbers, **recent, "per_day": round(usage.per_day, 3), "days_left": usage.days_left}


def _sentence(usage: UidUsage) -> str:
    share = 100 * usage.used / usage.capacity
    used = f"{usage.kind.value}: {usage.used} of {usage.capacity} UIDs used ({share:.2f} %), {usage.named} have a name"
    recent = ", ".join(f"{usage.recent[days]} in {counted(days, 'day')}" for days in WINDOWS)
    return f"{used}; new: {recent}; {_end(usage)}"


def _end(usage: UidUsage) -> str:
    if usage.days_left is None:
        return "no new UIDs"
    if usage.days_left > LONGEST_DAYS:
        return "the rest lasts for more than 100 years"
    day = datetime.fromtimestamp(usage.now_ms / 1000, UTC) + timedelta(days=usage.days_left)
    return f"exhausted on {day:%Y-%m-%d}, in {counted(round(usage.days_left), 'day')}"


async def _drop_daemon_caches(opened: Access) -> None:
    """Have the daemon of this state folder drop its caches. Other daemons notice changes by themselves later."""
    if opened.daemon is not None:
        await opened.daemon.call("drop_caches")


def grep(loaded: Loaded, words: Sequence[str], ignore_case: bool, as_json: bool) -> None:
    """Run `tsd uid grep`."""
    kinds, [pattern, *more] = _kinds_and_names(words)
    if more:
        raise click.UsageError(f"got {' '.join(words)!r}, wanted one regular expression, or KIND and one")
    try:
        regexp = re.compile(encode_name(pattern), re.IGNORECASE if ignore_case else 0)
    except re.error as exc:
        raise click.UsageError(f"got {pattern!r}, wanted a regular expression: {exc}") from exc
    found = 0

    async def run() -> None:
        nonlocal found
        async with access(loaded.config, must_exist=True) as opened:
            async for kind, name, number in _all_names(opened, loaded.config):
                if kind in kinds and regexp.search(name):
                    found += 1
                    _show(kind, name, number, as_json=as_json)

    trio.run(run)
    sys.exit(0 if found else 1)


def assign(loaded: Loaded, kind: str, names: Sequence[str], as_json: bool) -> None:
    """Run `tsd uid assign`."""
    _assign(loaded.config, Kind(kind), names, as_json=as_json)


def mkmetric(loaded: Loaded, names: Sequence[str], as_json: bool) -> None:
    """Run `tsd mkmetric`."""
    _assign(loaded.config, Kind.METRIC, names, as_json=as_json)


def lookup(loaded: Loaded, words: Sequence[str], as_json: bool) -> None:
    """Run `tsd uid NAME`."""
    kinds, names = _kinds_and_names(words)
    widths = key_layout(loaded.config).widths

    async def run() -> list[str]:
        async with access(loaded.config, must_exist=True) as opened:
            shown = [
                any([await _look_up(opened, widths, kind, name, as_json=as_json) for kind in kinds]) for name in names
            ]
        return [f"'{name}'" for name, found in zip(names, shown, strict=True) if not found]

    if missing := trio.run(run):
        raise NoSuchName(f"No such name or UID for {', '.join(kind.value for kind in kinds)}: {', '.join(missing)}")


def _kinds_and_names(words: Sequence[str]) -> tuple[list[Kind], Sequence[str]]:
    """Split an optional kind from names. A single word is always a name."""
    if len(words) > 1 and words[0] in KINDS:
        return [Kind(words[0])], words[1:]
    return list(Kind), words


def _assign(config: Config, kind: Kind, words: Sequence[str], *, as_json: bool) -> None:
    names = [checked_name(kind, word, config) for word in words]
    failures: list[TsdError] = []

    async def run() -> None:
        async with access(config) as opened:
            found = await opened.uids.find_or_assign(kind, names)
        failures.extend(number for number in found.values() if isinstance(number, TsdError))
        with closed_output_ignored():
            for name in names:
                number = found[name]
                if not isinstance(number, TsdError):
                    _show(kind, name, number, as_json=as_json)

    trio.run(run)
    if failures:
        raise failures[0]


async def _look_up(opened: Access, widths: Widths, kind: Kind, word: str, *, as_json: bool) -> bool:
    """Print the UID of a name, or the name of a UID given as a number. Return whether there is one."""
    name = encode_name(word)
    number: Any = (await opened.uids.find(kind, [name]))[name]
    if not isinstance(number, TsdError):
        _show(kind, name, number, as_json=as_json)
        return True
    if not word.isascii() or not word.isdigit():
        return False
    if len(word) > MOST_DIGITS or int(word) >> 8 * widths.of(kind):
        raise TsdError(f"{word} is too large to fit on {widths.of(kind)} bytes")
    number = encode_uid(int(word), widths.of(kind))
    found = (await opened.uids.names(kind, [number]))[number]
    if isinstance(found, TsdError):
        return False
    _show(kind, found, number, as_json=as_json)
    return True


async def _all_names(opened: Access, config: Config) -> AsyncIterator[tuple[Kind, bytes, bytes]]:
    kinds = {id_column(kind): kind for kind in Kind}
    async for rows in scan(opened.store, config.uid_table, columns=list(kinds)):
        for row in rows:
            if row.key != COUNTER_ROW:
                for cell in row.cells:
                    yield kinds[cell.column], row.key, cell.value


def _show(kind: Kind, name: bytes, number: bytes, *, as_json: bool) -> None:
    text = name.decode("latin-1")
    found = {"kind": kind.value, "name": text, "uid": number.hex()}
    click.echo(json.dumps(found) if as_json else f"{kind.value} {text}: {show_signed(number)}")
