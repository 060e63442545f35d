"""`tsd top`: the clients of a running daemon by lines, refused lines, new names and other counts."""

import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import click
import msgspec
import trio
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tsd.cli.context import with_config
from tsd.config.loader import Config, Loaded, state_folder
from tsd.daemon.wiring import control_path
from tsd.errors import StoreDown
from tsd.store.remote import ControlClient

ClientRow = dict[str, Any]  # one client of /api/stats/clients, with rates
RATES = {"lines": "lines_per_s", "bytes": "bytes_per_s", "refused": "refused_per_s", "new_names": "new_names_per_s"}
SORTS = {"l": "lines", "b": "bytes", "r": "refused", "n": "new_names", "c": "connections", "p": "paused_ms"}
WIDTH = 160  # of a table that is not printed on a terminal
KEYS = "   ".join(f"{key}: by {by.replace('_', ' ')}" for key, by in SORTS.items()) + "   q: quit"


class TopView(NamedTuple):
    """What to show, and how often."""

    by: str
    limit: int
    interval_s: float


@click.command()
@click.option("--sort", type=click.Choice(list(SORTS.values())), default="lines", show_default=True)
@click.option("--limit", type=click.IntRange(1), default=30, show_default=True, help="Number of clients.")
@click.option(
    "--interval",
    type=click.FloatRange(0),
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
    try:
        trio.run(_watch if live else _print, loaded.config, view, once, as_json)
    except KeyboardInterrupt:
        sys.exit(0)


class ClientPoller:
    """Polls a daemon, and computes rates."""

    def __init__(self, caller: ControlClient) -> None:
        self._caller = caller
        self._before: Mapping[str, ClientRow] = {}
        self._polled_s: float | None = None

    async def poll(self, view: TopView) -> list[ClientRow]:
        """Return the current clients, sorted as `view` says."""
        clients: list[ClientRow] = await self._caller.call("clients", sort="lines", limit=0)
        now_s = trio.current_time()
        elapsed_s = None if self._polled_s is None else now_s - self._polled_s
        for client in clients:
            before = self._before.get(client["client"], dict.fromkeys(RATES, 0))
            for count, rate in RATES.items():
                client[rate] = round((client[count] - before[count]) / elapsed_s, 1) if elapsed_s else None
        self._before, self._polled_s = {client["client"]: client for client in clients}, now_s
        rate = RATES.get(view.by, view.by)
        clients.sort(key=lambda one: (-(one[rate] or 0), -one[view.by], one["client"]))
        return clients[: view.limit]


@contextmanager
def _connection_errors(config: Config) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StoreDown(
            f"no daemon runs on {state_folder(config)}, or it belongs to another user: {exc.strerror}"
        ) from exc


async def _print(config: Config, view: TopView, once: bool, as_json: bool) -> None:
    """Print a table, or a line of JSON, per interval."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    with _connection_errors(config):
        caller = await ControlClient.connect(control_path(config))
    try:
        poller = ClientPoller(caller)
        if view.interval_s:
            await poller.poll(view)
        while True:
            await trio.sleep(view.interval_s)
            clients = await poller.poll(view)
            if as_json:
                click.echo(msgspec.json.encode({"clients": clients}))
            else:
                console.print(_table(clients, view))
            if once:
                return
    finally:
        await caller.aclose()


async def _watch(config: Config, view: TopView, *_: bool) -> None:
    """Refresh a table on the terminal until `q` is pressed."""
    with _connection_errors(config):
        caller = await ControlClient.connect(control_path(config))
    poller = ClientPoller(caller)
    with _single_keys(), Live(_table(await poller.poll(view), view, KEYS), screen=True, auto_refresh=False) as live:
        while True:
            key = ""
            with trio.move_on_after(view.interval_s):
                key = await _key()
            if key == "q":
                break
            view = view._replace(by=SORTS.get(key, view.by))
            live.update(_table(await poller.poll(view), view, KEYS), refresh=True)
    await caller.aclose()


@contextmanager
def _single_keys() -> Iterator[None]:
    """Read keys without waiting for a line end."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


async def _key() -> str:
    await trio.lowlevel.wait_readable(sys.stdin)
    return sys.stdin.read(1)


def _table(clients: Sequence[ClientRow], view: TopView, caption: str | None = None) -> Table:
    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("CLIENT", no_wrap=True, min_width=15)
    for head, count in (
        ("CONN", "connections"), ("LINES/S", "lines"), ("KB/S", "bytes"), ("REFUSED/S", "refused"),
        ("NEW NAMES/S", "new_names"), ("LINES", ""), ("REFUSED", ""), ("NAMES", ""), ("SERIES", ""), ("PAUSED", ""),
    ):  # fmt: skip
        table.add_column(head, justify="right", style="bold" if count == view.by else "", no_wrap=True)
    table.add_column("LAST REFUSED", no_wrap=True, overflow="ellipsis", min_width=12)
    for client in clients:
        table.add_row(Text(client["client"]), *_cells(client), Text(_example(client)))
    return table


def _cells(client: ClientRow) -> Iterator[str]:
    yield f"{client['connections']:,}"
    yield _rate(client["lines_per_s"])
    yield _rate(client["bytes_per_s"] and client["bytes_per_s"] / 1000)
    yield _rate(client["refused_per_s"])
    yield _rate(client["new_names_per_s"])
    for total in ("lines", "refused", "new_names", "new_series"):
        yield f"{client[total]:,}"
    yield f"{client['paused_ms'] / 1000:,.1f}s" + ("*" if client["pausing"] else "")


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:,.1f}" if rate < 10 else f"{rate:,.0f}"


def _example(client: ClientRow) -> str:
    """Return the error of the last refused line, and the line, without control characters."""
    example = client["refused_example"]
    if not example:
        return ""
    text = f"{example['message']} ← {example['line']}"
    return "".join(one if one.isprintable() else "·" for one in text)
