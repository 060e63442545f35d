"""`tsd uid rename`, `delete`, `fsck` and `report`: the UID table changed, mended and watched."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta

import click
import trio

from tsd.assembly import now_ms
from tsd.cli.access import Access, access
from tsd.cli.options import with_config
from tsd.cli.progress import Progress
from tsd.codec.fsck_uids import UidCheck
from tsd.codec.uid import Kind
from tsd.codec.words import encode_name, illegal_character, show_signed
from tsd.config import Config, Loaded, layout
from tsd.errors import BadLine
from tsd.uid_pace import WINDOWS, Usage, usages
from tsd.uid_table import Mending, UidFsck, delete, rename

KINDS = [kind.value for kind in Kind]
LONGEST_DAYS = 36525  # further ahead nobody plans
MOST_ERRORS = 255  # that an exit status can tell


def checked_name(kind: Kind, word: str, config: Config) -> bytes:
    """A name's bytes. Unlike OpenTSDB's tool, which stores any, ours wants a name that a point could carry."""
    name = any_name(word)
    odd = illegal_character(name, config.allow_specialchars.encode("latin-1"))
    if not name or odd:
        raise click.UsageError(f'Invalid {kind.value} ("{word}"): illegal character: {odd or "none at all"}')
    return name


def any_name(word: str) -> bytes:
    """The bytes of a name that may be there already, however odd it is."""
    try:
        return encode_name(word)
    except BadLine as exc:
        raise click.UsageError(str(exc)) from exc


@click.command("rename")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("old")
@click.argument("new")
@with_config
def rename_uid(loaded: Loaded, kind: str, old: str, new: str) -> None:
    """Give the UID of OLD the name NEW, which must have none. All its data is NEW's from then on."""
    config = loaded.config
    before, after = any_name(old), checked_name(Kind(kind), new, config)

    async def run() -> None:
        async with access(config, must_exist=True) as ways:
            await rename(ways.store, config.uid_table, Kind(kind), before, after)
            await _tell_daemon(ways)

    trio.run(run)
    click.echo(f"{kind} {old} -> {new}")


@click.command("delete")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
@with_config
def delete_uid(loaded: Loaded, kind: str, name: str) -> None:
    """Delete a name and its UID. Its data stays, and nobody can read it: delete that first, with `tsd delete`.

    Rows that were left `tsd fsck --delete-orphans` finds.
    """
    config = loaded.config
    found = b""

    async def run() -> None:
        nonlocal found
        async with access(config, must_exist=True) as ways:
            found = await delete(ways.store, config.uid_table, Kind(kind), any_name(name))
            await _tell_daemon(ways)

    trio.run(run)
    click.echo(f"UID {kind} {name}: {show_signed(found)} deleted.")


@click.command("fsck")
@click.argument("words", nargs=-1, type=click.Choice(["fix", "delete_unknown"]), metavar="[fix] [delete_unknown]")
@click.option("--fix", is_flag=True, help="Mend what is found; the same as the word fix.")
@click.option("--delete-unknown", is_flag=True, help="With fix, delete cells that nobody knows; the same as the word.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def fsck_uids(loaded: Loaded, words: Sequence[str], fix: bool, delete_unknown: bool, as_json: bool) -> None:
    """Look for what is wrong with the UID table, and mend it with `fix`. Daemons may go on assigning.

    The exit status is the number of errors found, 255 at most.
    """
    config = loaded.config
    found: list[tuple[UidCheck, Mending | None]] = []

    async def run() -> None:
        async with access(config, must_exist=True) as ways:
            widths = layout(config).widths
            table = UidFsck(ways.store, config.uid_table, widths, now_ms, random_metrics=config.random_metrics)
            with closing(Progress("rows")) as progress:
                if fix or "fix" in words:
                    unknown = delete_unknown or "delete_unknown" in words
                    found.append(await table.mend(progress.add, delete_unknown=unknown))
                    await _tell_daemon(ways)
                else:
                    found.append((await table.check(progress.add), None))

    trio.run(run)
    [(check, mending)] = found
    click.echo(_json(check, mending) if as_json else "\n".join(_plain(check, mending)))
    sys.exit(min(check.errors, MOST_ERRORS))


def _json(check: UidCheck, mending: Mending | None) -> str:
    findings = [
        {"kind": one.kind and one.kind.value, "error": one.is_error, "detail": one.text} for one in check.findings
    ]
    report: dict[str, object] = {"findings": findings, "errors": check.errors}
    if mending is not None:
        raised = {kind.value: by for kind, by in mending.raised.items()}
        report |= {"written": mending.written, "deleted": mending.deleted, "raised": raised, "left": mending.left}
    return json.dumps(report)


def _plain(check: UidCheck, mending: Mending | None) -> Iterator[str]:
    yield "Running in log only mode" if mending is None else "Mending what is found"
    for one in check.findings:
        yield f"{'ERROR' if one.is_error else 'WARN'} {one.kind.value + ': ' if one.kind else ''}{one.text}"
    if mending is not None:
        for text in mending.left:
            yield f"WARN not mended: {text}"
        yield f"{mending.written} cells written, {mending.deleted} deleted, {len(mending.raised)} counters raised"
    yield f"{check.errors} errors found." if check.errors else "No errors found."


@click.command("report")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def report(loaded: Loaded, as_json: bool) -> None:
    """Tell how many UIDs of each kind are used, how fast they go, and when none is left."""
    config = loaded.config
    found: list[Usage] = []

    async def run() -> None:
        async with access(config, must_exist=True) as ways:
            with closing(Progress("rows")) as progress:
                found.extend(
                    await usages(
                        ways.store,
                        config.uid_table,
                        layout(config).widths,
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


def _numbers(usage: Usage) -> dict[str, object]:
    numbers = {"used": usage.used, "left": usage.left, "capacity": usage.capacity, "named": usage.named}
    recent = {f"new_in_{days}_days": usage.recent[days] for days in WINDOWS}
    return {**numbers, **recent, "per_day": round(usage.per_day, 3), "days_left": usage.days_left}


def _sentence(usage: Usage) -> str:
    share = 100 * usage.used / usage.capacity
    used = f"{usage.kind.value}: {usage.used} of {usage.capacity} UIDs used ({share:.2f} %), {usage.named} have a name"
    recent = ", ".join(f"{usage.recent[days]} in {days} day{'s' * (days > 1)}" for days in WINDOWS)
    return f"{used}; new: {recent}; {_end(usage)}"


def _end(usage: Usage) -> str:
    if usage.days_left is None:
        return "none is being used up"
    if usage.days_left > LONGEST_DAYS:
        return "the rest will do for more than 100 years"
    day = datetime.fromtimestamp(usage.now_ms / 1000, UTC) + timedelta(days=usage.days_left)
    return f"none is left on {day:%Y-%m-%d}, in {usage.days_left:.0f} days"


async def _tell_daemon(ways: Access) -> None:
    """Have the daemon of this state folder look names up again. Others see for themselves, a little later."""
    if ways.daemon is not None:
        await ways.daemon.ask("drop_caches")
