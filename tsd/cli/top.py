"""`tsd top`: the clients of a running daemon by lines, refused lines, new names and other counts."""

import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click
import msgspec

from tsd.cli.control import DaemonConnection, connect
from tsd.cli.options import FiniteRange
from tsd.cli.settings import with_config
from tsd.config.loader import Loaded
from tsd.config.settings import Config

ClientRow = dict[str, Any]  # one client of /api/stats/clients, with rates
RATES = {"lines": "lines_per_s", "bytes": "bytes_per_s", "refused": "refused_per_s", "new_names": "new_names_per_s"}
SORTS = {"l": "lines", "b": "bytes", "r": "refused", "n": "new_names", "c": "connections", "p": "paused_ms"}
WIDTH = 160  # of a table that is not printed on a terminal
INDENT = 4  # of a refused line below its client
KEYS = "q: quit  " + "  ".join(f"{key}: {by.replace('_ms', '').replace('_', ' ')}" for key, by in SORTS.items())
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"  # the terminal's other screen, no cursor
HOME, LINE_END, BELOW = "\x1b[H", "\x1b[K\r\n", "\x1b[J"  # go to the top; clear to the end of a line, of the screen


class TopView(NamedTuple):
    """What to show, and how often."""

    by: str
    limit: int
    interval_s: float


class Column(NamedTuple):
    """A column of the table."""

    head: str
    shown: Callable[[ClientRow], str]
    priority: int  # columns with higher numbers are left out first on a narrow terminal
    sort: str = ""  # the order that it shows


@click.command()
@click.option("--sort", type=click.Choice(list(SORTS.values())), default="lines", show_default=True)
@click.option("--limit", type=click.IntRange(1), default=30, show_default=True, help="Number of clients.")
@click.option(
    "--interval",
    type=FiniteRange(0),
    default=2.0,
    show_default=True,
    help="Seconds over which rates are measured.",
)
@click.option("--once", is_flag=True, help="Print once, after one interval. With --interval 0 there are no rates.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@with_config
def top(loaded: Loaded, sort: str, limit: int, interval: float, once: bool, as_json: bool) -> None:
    """Show the busiest clients, refreshed like `top`; keys change the order. Rates are of the last interval, totals
    since the daemon's start. A client is an address, or an account at an address (NAME@ADDRESS)."""
    view = TopView(sort, limit, interval)
    live = not once and not as_json and sys.stdin.isatty() and sys.stdout.isatty()
    if not once and not interval:
        raise click.UsageError("--interval 0 requires --once")
    (_watch if live else _print)(loaded.config, view, once=once, as_json=as_json)


class ClientPoller:
    """Polls a daemon, and computes rates."""

    def __init__(self, daemon: DaemonConnection) -> None:
        self._daemon = daemon
        self._before: Mapping[str, ClientRow] = {}
        self._polled_s: float | None = None

    def poll(self, view: TopView) -> list[ClientRow]:
        """Return the current clients, sorted as `view` says."""
        clients: list[ClientRow] = self._daemon.call("clients", sort="lines", limit=0)
        now_s = time.monotonic()
        elapsed_s = None if self._polled_s is None else now_s - self._polled_s
        for client in clients:
            before = self._before.get(client["client"], dict.fromkeys(RATES, 0))
            for count, rate in RATES.items():
                client[rate] = round((client[count] - before[count]) / elapsed_s, 1) if elapsed_s else None
        self._before, self._polled_s = {client["client"]: client for client in clients}, now_s
        rate = RATES.get(view.by, view.by)
        clients.sort(key=lambda one: (-(one[rate] or 0), -one[view.by], one["client"]))
        return clients[: view.limit]


def _print(config: Config, view: TopView, *, once: bool, as_json: bool) -> None:
    """Print a table, or a line of JSON, per interval."""
    with connect(config) as daemon:
        poller = ClientPoller(daemon)
        if view.interval_s:
            poller.poll(view)
        while True:
            select.select([], [], [], view.interval_s)
            clients = poller.poll(view)
            if as_json:
                click.echo(msgspec.json.encode({"clients": clients}))
            else:
                width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
                click.echo("\n".join(table(clients, view, width)))
            if once:
                return


def _watch(config: Config, view: TopView, **_: bool) -> None:
    """Refresh a table on the terminal until `q` is pressed."""
    with connect(config) as daemon, _screen():
        poller = ClientPoller(daemon)
        while True:
            size = shutil.get_terminal_size()
            lines = table(poller.poll(view), view, size.columns)[: size.lines - 1]
            _write(HOME + "".join(line + LINE_END for line in lines) + BELOW + KEYS[: size.columns])
            pressed = select.select([sys.stdin], [], [], view.interval_s)[0]
            key = sys.stdin.read(1) if pressed else ""
            if key == "q":
                return
            view = view._replace(by=SORTS.get(key, view.by))


@contextmanager
def _screen() -> Iterator[None]:
    """Use the terminal's other screen for the block, and read keys without waiting for a line end."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    _write(ENTER_SCREEN)
    try:
        yield
    finally:
        _write(LEAVE_SCREEN)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def table(clients: Sequence[ClientRow], view: TopView, width: int) -> list[str]:
    """Return the lines of the table, none longer than `width`. Below a client is the last line that was refused.

    Numbers are never shortened: columns that do not fit are left out, and a client's name is shortened at last.
    """
    columns = [column._replace(priority=-1) if column.sort == view.by else column for column in COLUMNS]
    cells = {column.head: [column.shown(client) for client in clients] for column in columns}
    widths = {head: max(map(len, (head, *shown))) for head, shown in cells.items()}
    names = [_printable(client["client"]) for client in clients]
    name_width = max(map(len, ("CLIENT", *names)))
    kept = list(columns)
    while len(kept) > 1 and min(name_width, width // 3) + sum(2 + widths[column.head] for column in kept) > width:
        kept.remove(max(kept, key=lambda column: column.priority))
    room = max(width - sum(2 + widths[column.head] for column in kept), 1)
    name_width = min(name_width, room)

    def line(name: str, at: int | None) -> str:
        numbers = (column.head if at is None else cells[column.head][at] for column in kept)
        shown = "".join(f"  {text:>{widths[column.head]}}" for text, column in zip(numbers, kept, strict=True))
        return f"{_cut(name, name_width):<{name_width}}{shown}"

    lines = [line("CLIENT", None)]
    for at, client in enumerate(clients):
        lines.append(line(names[at], at))
        if example := _example(client):
            lines.append(" " * INDENT + _cut(example, width - INDENT))
    return lines


def _total(count: str) -> Callable[[ClientRow], str]:
    return lambda client: f"{client[count]:,}"


def _rate(count: str, unit: int = 1) -> Callable[[ClientRow], str]:
    def shown(client: ClientRow) -> str:
        rate = client[RATES[count]]
        return "-" if rate is None else f"{rate / unit:,.1f}" if rate / unit < 10 else f"{rate / unit:,.0f}"

    return shown


def _paused(client: ClientRow) -> str:
    return f"{client['paused_ms'] / 1000:,.1f}s" + ("*" if client["pausing"] else "")


COLUMNS = (
    Column("CONN", _total("connections"), 5, "connections"),
    Column("LINES/S", _rate("lines"), 0, "lines"),
    Column("KB/S", _rate("bytes", 1000), 6, "bytes"),
    Column("REFUSED/S", _rate("refused"), 2, "refused"),
    Column("NEW NAMES/S", _rate("new_names"), 7, "new_names"),
    Column("LINES", _total("lines"), 3),
    Column("REFUSED", _total("refused"), 1),
    Column("NAMES", _total("new_names"), 8),
    Column("SERIES", _total("new_series"), 9),
    Column("PAUSED", _paused, 4, "paused_ms"),
)


def _example(client: ClientRow) -> str:
    """Return the error of the last refused line, and the line, without control characters."""
    example = client["refused_example"]
    return _printable(f"{example['message']} ← {example['line']}") if example else ""


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "·" for one in text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
