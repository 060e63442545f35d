"""`tsd query`: print or draw the answer to a query, from the store or from any daemon with OpenTSDB's API."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from tsd.cli.options import FiniteRange, imported
from tsd.cli.query_http import ask, split_url
from tsd.cli.query_output import in_form, read_answer, warnings_of
from tsd.cli.query_words import NOT_ENOUGH, read
from tsd.cli.settings import with_config
from tsd.config.loader import Loaded

FORMS = ("lines", "table", "csv", "json")
KINDS = {".png": "png", ".svg": "svg"}
AXES = {
    "size": ("wxh", "WIDTHxHEIGHT", "Size of the graph in pixels (default: 1024x768)."),
    "title": ("title", "TEXT", "Title of the graph."),
    "ylabel": ("ylabel", "TEXT", "Label of the left axis."),
    "yrange": ("yrange", "[LOW:HIGH]", "Range of the left axis; either may be left out."),
    "y2label": ("y2label", "TEXT", "Label of the right axis."),
    "y2range": ("y2range", "[LOW:HIGH]", "Range of the right axis."),
}  # option: the parameter of /q, its metavar and its help
FLAGS = {"ylog": "Logarithmic left axis.", "y2log": "Logarithmic right axis."}


class GraphFile(NamedTuple):
    """A graph to draw."""

    path: Path
    kind: str  # of the picture: png or svg
    right: Sequence[int]  # numbers of the queries with the axis at the right, from 1
    picture: Mapping[str, Sequence[str]]  # parameters of /q


def picture_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a picture, and pass them as the parameters of /q."""

    @functools.wraps(command)
    def wrapper(*words: Any, **given: Any) -> Any:
        texts = {parameter: [text] for name, (parameter, _, _) in AXES.items() if (text := given.pop(name)) is not None}
        flags: dict[str, list[str]] = {name: [""] for name in FLAGS if given.pop(name)}
        return command(*words, picture={**texts, **flags}, **given)

    added: Callable[..., Any] = wrapper
    for name, text in reversed(FLAGS.items()):
        added = click.option(f"--{name}", is_flag=True, help=text)(added)
    for name, (_, metavar, text) in reversed(AXES.items()):
        added = click.option(f"--{name}", metavar=metavar, help=text)(added)
    return added


@click.command()
@click.argument("words", nargs=-1, metavar="START [END] QUERY...")
@click.option("--url", metavar="URL", help="Ask the daemon at http://HOST:PORT, tsd or OpenTSDB, and not a store.")
@click.option("--timeout", type=FiniteRange(0.001, 86400), default=60.0, metavar="SECONDS", help="Wait for a URL (60).")
@click.option(
    "--format", "form", type=click.Choice(FORMS), help="Form of the points (default: lines; of a URL: table)."
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json: the answer of /api/query.")
@click.option(
    "--graph", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Draw a graph to FILE, .png or .svg; needs tsd-daemon[graph].",
)  # fmt: skip
@click.option("--right", type=click.IntRange(1), multiple=True, metavar="N", help="Right axis for QUERY N. Repeatable.")
@picture_options
@with_config
def query(
    loaded: Loaded, words: Sequence[str], url: str | None, timeout: float, form: str | None, as_json: bool,
    graph: Path | None, right: Sequence[int], picture: Mapping[str, Sequence[str]],
) -> None:  # fmt: skip
    """Print or draw the points of queries.

    START and END are e.g. 1h-ago, 1700000000 or 2023/11/14-22:13:20. A QUERY is as in OpenTSDB's URIs, e.g.
    'sum:1m-avg:rate:cpu{host=*}', or as for OpenTSDB's tool, e.g. sum rate downsample 60000 avg cpu 'host=web01|web02'.

    The points come from the store of the state folder, or with --url from a daemon. The environment variable TSD_TOKEN
    has the token, or the URL a name and a password. Like OpenTSDB's tool, lines have all points of the hours that were
    read; other forms keep to START and END. Exit status 1 for an unknown name or function, 2 for missing words.
    """
    if len(words) < 2:
        raise click.UsageError(NOT_ENOUGH)
    form = _checked_form(form, as_json, default="lines" if url is None else "table")
    if graph is None and (picture or right):
        raise click.UsageError("--graph FILE is missing: only graphs have a size, a title and axes")
    file = None
    if graph is not None:
        kind = KINDS.get(graph.suffix.lower())
        if kind is None:
            raise click.UsageError(f"--graph {graph}: wanted a name that ends in {' or '.join(KINDS)}")
        imported("tsd.cli.query_picture:check")(picture)
        file = GraphFile(graph, kind, right, picture)
    if url is not None:
        _query_daemon(loaded, words, url, timeout, form, file)
    elif file is not None:
        imported("tsd.cli.query_picture:draw_query")(loaded, words, file)
    else:
        imported("tsd.cli.query_store:print_query")(loaded, words, form)


def _checked_form(form: str | None, as_json: bool, default: str) -> str:
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} exclude each other")
    return "json" if as_json else form or default


def _query_daemon(
    loaded: Loaded, words: Sequence[str], url: str, timeout_s: float, form: str, graph: GraphFile | None
) -> None:
    split_url(url)
    wanted = read(words)
    more = [] if form == "json" and graph is None else [("ms", "true")]
    body = ask(
        url,
        [*wanted.params(), *more, *([("show_query", "true")] if graph is not None and graph.right else [])],
        timeout_s,
    )
    for warning in warnings_of(body):
        click.echo(f"tsd: {warning}", err=True)
    if graph is not None:
        draw = imported("tsd.cli.query_picture:draw_series")
        draw(read_answer(body), wanted.start, wanted.end, loaded, graph)
        return
    for text in in_form(body, form):
        click.echo(text, nl=False)
