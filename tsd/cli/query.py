"""`tsd query`: print the result of a query as lines of OpenTSDB's tool, as JSON, or as a picture."""

from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path

import click
import msgspec
import trio

from tsd.api.graph.endpoint import with_curves
from tsd.api.graph.picture import Kind, read_picture
from tsd.api.graph.process import check_can_draw, draw_picture
from tsd.cli.context import access, flush_pending
from tsd.cli.settings import with_config
from tsd.config.loader import Config, Loaded, state_folder
from tsd.daemon.settings import now_ms
from tsd.daemon.wiring import make_engine
from tsd.errors import BadQuery
from tsd.query.model import Query
from tsd.query.parse.uri import NOT_ENOUGH, read_words
from tsd.query.result import Answer, Group
from tsd.query.serialize import write_answer
from tsd.tables.quirks import quirks_for

KINDS: dict[str, Kind] = {".png": "png", ".svg": "svg"}
_DIGITS = 400  # of the largest double, and six decimals
_MILLIONTH = Decimal("0.000001")


@click.command()
@click.argument("words", nargs=-1, metavar="START [END] FUNC [rate] [downsample MS FUNC] METRIC [TAGK=TAGV]...")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON of /api/query.")
@click.option(
    "--graph",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw a graph to FILE, .png or .svg; needs tsd-daemon[graph].",
)
@with_config
def query(loaded: Loaded, words: Sequence[str], as_json: bool, graph: Path | None) -> None:
    """Print the points of a query: metric, time in ms, value and tags.

    START and END are e.g. 1h-ago, 1700000000 or 2023/11/14-22:13:20; tag values are filters as in the first braces of a
    URI, e.g. 'host=*' or 'host=web01|web02'. Like OpenTSDB's tool it prints all points of the hours that were read;
    --json and --graph keep to START and END. Exit status 1 for an unknown name or function, 2 for missing words.
    """
    kind = None
    if graph is not None:
        kind = KINDS.get(graph.suffix.lower())
        if kind is None:
            raise click.UsageError(f"--graph {graph}: wanted a name that ends in {' or '.join(KINDS)}")
        check_can_draw()
    try:
        wanted = read_words(words, now_ms(), quirks=quirks_for(loaded.config.corrected))
    except BadQuery as exc:
        if exc.message != NOT_ENOUGH:
            raise
        raise click.UsageError(NOT_ENOUGH) from exc

    async def run() -> None:
        answer = await find(loaded.config, wanted)
        for warning in (text for sub in answer.subs for text in sub.warnings):
            click.echo(f"tsd: {warning}", err=True)
        if graph is not None and kind is not None:
            await draw(answer, graph, kind, state_folder(loaded.config) / "matplotlib")
        elif as_json:
            for part in write_answer(answer):
                click.echo(part, nl=False)
            click.echo()
        else:
            for text in lines(answer):
                click.echo(text, nl=False)

    trio.run(run)


async def find(config: Config, wanted: Query) -> Answer:
    """Run a query on the store, directly or through the daemon that has it open. Raise TsdError."""
    async with access(config, must_exist=True) as opened:
        await flush_pending(opened, delete=False)
        return await make_engine(config, opened.store, opened.uids).run(wanted)


async def draw(answer: Answer, file: Path, kind: Kind, fonts: Path) -> None:
    """Draw an answer to a file."""
    picture = read_picture({}, answer.query.start_ms, answer.query.end_ms)
    picture = with_curves(msgspec.structs.replace(picture, kind=kind), answer, [])
    await trio.Path(file).write_bytes(await draw_picture(picture, fonts))


def lines(answer: Answer) -> Iterator[str]:
    """The points of each group, with integers as they are and six decimals for the others."""
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
    """A double as Java's %f: its shortest digits, rounded half up.

    >>> six_decimals(0.3), six_decimals(float("nan")), six_decimals(-2.5e-7)
    ('0.300000', 'NaN', '-0.000000')
    """
    exact = Decimal(repr(value))
    if not exact.is_finite():
        return "NaN" if exact.is_nan() else "Infinity" if exact > 0 else "-Infinity"
    return f"{exact.quantize(_MILLIONTH, ROUND_HALF_UP):f}"
