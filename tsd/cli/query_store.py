"""Queries of the store of a state folder: `tsd query` without --url."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal, localcontext

import click
import trio

from tsd.cli.context import access, flush_pending
from tsd.cli.query_output import in_form
from tsd.cli.query_words import NOT_ENOUGH, has_own_form
from tsd.cli.query_words import read as read_own_form
from tsd.config.loader import Loaded
from tsd.config.settings import Config
from tsd.daemon.engine import make_engine
from tsd.daemon.settings import now_ms
from tsd.daemon.wiring import configured_reader
from tsd.errors import BadQuery
from tsd.query.model import Query
from tsd.query.parse.uri import read_m, read_words
from tsd.query.parse.validate import check
from tsd.query.result import Answer, Group
from tsd.query.serialize import write_answer
from tsd.tables.quirks import quirks_for

_DIGITS = 400  # of the largest double, and six decimals
_MILLIONTH = Decimal("0.000001")


def print_query(loaded: Loaded, words: Sequence[str], form: str) -> None:
    """Run a query and print it in a form: lines, table, csv or json. Raise TsdError."""
    wanted = read_query(loaded.config, words)
    if form in ("table", "csv"):
        wanted = replace(wanted, ms_resolution=True)

    async def run() -> None:
        answer = await find(loaded.config, wanted)
        parts = lines(answer) if form == "lines" else in_form(b"".join(write_answer(answer)), form)
        for text in parts:
            click.echo(text, nl=False)

    trio.run(run)


def read_query(config: Config, words: Sequence[str]) -> Query:
    """Return the query of a command line. Raise TsdError."""
    quirks = quirks_for(config.corrected)
    if has_own_form(words):
        found = read_own_form(words)
        frame = Query(0, 0, (), found.start, found.end, no_annotations=True, quirks=quirks)
        return check(frame, [read_m(text, quirks=quirks) for text in found.queries], now_ms())
    try:
        return read_words(words, now_ms(), quirks=quirks)
    except BadQuery as exc:
        if exc.message != NOT_ENOUGH:
            raise
        raise click.UsageError(NOT_ENOUGH) from exc


async def find(config: Config, wanted: Query) -> Answer:
    """Run a query on the store, directly or through the daemon that has it open, and print its warnings. Raise
    TsdError."""
    async with access(config, must_exist=True) as opened:
        await flush_pending(opened, delete=False)
        reader = await configured_reader(config, opened.store, opened.uids, warn)
        answer = await make_engine(config, reader).run(wanted)
    for warning in answer.warnings:
        warn(warning)
    return answer


def warn(warning: str) -> None:
    """Print a warning."""
    click.echo(f"tsd: {warning}", err=True)


def lines(answer: Answer) -> Iterator[str]:
    """Yield the points of each group, with integers as they are and six decimals for the others."""
    for group in (group for sub in answer.subs for group in sub.groups):
        yield "".join(_lines(group))


def _lines(group: Group) -> Iterator[str]:
    tags = "{" + ", ".join(f"{tagk}={tagv}" for tagk, tagv in group.tags.items()) + "}"
    points = group.points
    values = zip(points.bits.tolist(), points.bits.view("f8").tolist(), points.floats.tolist(), strict=True)
    with localcontext(prec=_DIGITS):
        for time, (whole, double, is_float) in zip(points.times.tolist(), values, strict=True):
            yield f"{group.metric} {time} {six_decimals(double) if is_float else whole} {tags}\n"


def six_decimals(value: float) -> str:
    """Return a double as Java's %f: its shortest digits, rounded half up.

    >>> six_decimals(0.3), six_decimals(float("nan")), six_decimals(-2.5e-7)
    ('0.300000', 'NaN', '-0.000000')
    """
    exact = Decimal(repr(value))
    if not exact.is_finite():
        return "NaN" if exact.is_nan() else "Infinity" if exact > 0 else "-Infinity"
    return f"{exact.quantize(_MILLIONTH, ROUND_HALF_UP):f}"
