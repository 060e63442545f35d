"""`tsd uid` and `tsd mkmetric`: names and their UIDs, printed as OpenTSDB's tool prints them."""

import re
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click
import trio

from tsd.cli.access import Access, access
from tsd.cli.options import config_options, with_config
from tsd.cli.uid_upkeep import KINDS, checked_name, delete_uid, fsck_uids, rename_uid, report
from tsd.codec.uid import COUNTER_ROW, Kind, Widths, encode_uid
from tsd.codec.words import encode_name, show_signed
from tsd.config import Config, Loaded, layout
from tsd.errors import NoSuchName, TsdError
from tsd.store import scan


class _UidGroup(click.Group):
    """`tsd uid NAME` looks a name up: whatever is no sub-command is one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["lookup", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_UidGroup)
@config_options
def uid(**_: object) -> None:
    """Look names and UIDs up, assign, rename, delete and check them.

    `tsd uid [KIND] NAME...` prints what is found; a number is looked up as a UID, too. KIND is metrics, tagk or tagv,
    and has to be given where the first NAME of several is one of these words.
    """


for _command in (rename_uid, delete_uid, fsck_uids, report):
    uid.add_command(_command)


@uid.command("grep")
@click.argument("words", nargs=-1, required=True, metavar="[KIND] REGEXP")
@click.option("-i", "--ignore-case", is_flag=True, help="Take upper and lower case for the same.")
@with_config
def grep(loaded: Loaded, words: Sequence[str], ignore_case: bool) -> None:
    """Print every name that REGEXP is found in. Exit status 1 where there is none."""
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
        async with access(loaded.config, must_exist=True, writes=False) as ways:
            async for kind, name, number in _all_names(ways, loaded.config):
                if kind in kinds and regexp.search(name):
                    found += 1
                    _show(kind, name, number)

    trio.run(run)
    sys.exit(0 if found else 1)


@uid.command("assign")
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("names", nargs=-1, required=True)
@with_config
def assign(loaded: Loaded, kind: str, names: Sequence[str]) -> None:
    """Give each of NAMES a UID, where it has none, and print it."""
    _assign(loaded.config, Kind(kind), names)


@click.command()
@click.argument("names", nargs=-1, required=True)
@with_config
def mkmetric(loaded: Loaded, names: Sequence[str]) -> None:
    """Give metrics their UIDs; the same as `tsd uid assign metrics NAMES`."""
    _assign(loaded.config, Kind.METRIC, names)


@uid.command("lookup", hidden=True)
@click.argument("words", nargs=-1, required=True)
@with_config
def lookup(loaded: Loaded, words: Sequence[str]) -> None:
    """`tsd uid [KIND] NAME...`: show those that are there; NoSuchName says which are not."""
    kinds, names = _kinds_and_names(words)
    widths = layout(loaded.config).widths

    async def run() -> list[str]:
        async with access(loaded.config, must_exist=True, writes=False) as ways:
            shown = [any([await _look_up(ways, widths, kind, name) for kind in kinds]) for name in names]
        return [f"'{name}'" for name, found in zip(names, shown, strict=True) if not found]

    if missing := trio.run(run):
        raise NoSuchName(f"No such name or UID for {', '.join(kind.value for kind in kinds)}: {', '.join(missing)}")


def _kinds_and_names(words: Sequence[str]) -> tuple[list[Kind], Sequence[str]]:
    """A lone word is a name, even if it is a kind's."""
    if len(words) > 1 and words[0] in KINDS:
        return [Kind(words[0])], words[1:]
    return list(Kind), words


def _assign(config: Config, kind: Kind, words: Sequence[str]) -> None:
    names = [checked_name(kind, word, config) for word in words]
    failures: list[TsdError] = []

    async def run() -> None:
        async with access(config) as ways:
            found = await ways.uids.find_or_assign(kind, names)
        for name in names:
            number = found[name]
            if isinstance(number, TsdError):
                failures.append(number)
            else:
                _show(kind, name, number)

    trio.run(run)
    if failures:
        raise failures[0]


async def _look_up(ways: Access, widths: Widths, kind: Kind, word: str) -> bool:
    """Show what one kind has of a name, or of a UID's number; whether it has any."""
    name = encode_name(word)
    number: Any = (await ways.uids.find(kind, [name]))[name]
    if not isinstance(number, TsdError):
        _show(kind, name, number)
        return True
    if not word.isascii() or not word.isdigit():
        return False
    if int(word) >> 8 * widths.of(kind):
        raise TsdError(f"{word} is too large to fit on {widths.of(kind)} bytes")
    number = encode_uid(int(word), widths.of(kind))
    found = (await ways.uids.names(kind, [number]))[number]
    if isinstance(found, TsdError):
        return False
    _show(kind, found, number)
    return True


async def _all_names(ways: Access, config: Config) -> AsyncIterator[tuple[Kind, bytes, bytes]]:
    kinds = {kind.id_column: kind for kind in Kind}
    async for rows in scan(ways.store, config.uid_table, columns=list(kinds)):
        for row in rows:
            if row.key != COUNTER_ROW:
                for cell in row.cells:
                    yield kinds[cell.column], row.key, cell.value


def _show(kind: Kind, name: bytes, number: bytes) -> None:
    click.echo(f"{kind.value} {name.decode('latin-1')}: {show_signed(number)}")
