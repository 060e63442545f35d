"""`tsd top`: who sends most, who is refused, who makes up names, as the daemon of this state folder has it."""

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

from tsd.assembly import control_path
from tsd.cli.options import with_config
from tsd.config import Config, Loaded, state_folder
from tsd.errors import StoreDown
from tsd.store.remote import Caller

Told = dict[str, Any]  # of one client: what /api/stats/clients tells, and rates
RATES = {"lines": "lines_per_s", "bytes": "bytes_per_s", "refused": "refused_per_s", "new_names": "new_names_per_s"}
SORTS = {"l": "lines", "b": "bytes", "r": "refused", "n": "new_names", "c": "connections", "p": "paused_ms"}
WIDTH = 160  # of a table that goes into a file
KEYS = "   ".join(f"{key}: by {by.replace('_', ' ')}" for key, by in SORTS.items()) + "   q: quit"


class Wish(NamedTuple):
    """What is shown, and how often."""

    by: str
    limit: int
    interval_s: float


@click.command()
@click.option("--sort", type=click.Choice(list(SORTS.values())), default="lines", show_default=True)
@click.option("--limit", type=click.IntRange(1), default=30, show_default=True, help="Clients shown.")
@click.option(
    "--interval", type=click.FloatRange(0), default=2.0, show_default=True, help="Seconds that rates are taken over."
)
@click.option("--once", is_flag=True, help="Show it once, after one interval; with --interval 0 there are no rates.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@with_config
def top(loaded: Loaded, sort: str, limit: int, interval: float, once: bool, as_json: bool) -> None:
    """Clients by what they send, refreshed like top's; keys change the order. Rates are of the last interval, totals
    since the daemon's start. A client is an address, or an account at one (NAME@ADDRESS)."""
    wish = Wish(sort, limit, interval)
    live = not once and not as_json and sys.stdin.isatty() and sys.stdout.isatty()
    if not once and not interval:
        raise click.UsageError("--interval 0 goes with --once")
    try:
        trio.run(_watch if live else _print, loaded.config, wish, once, as_json)
    except KeyboardInterrupt:
        sys.exit(0)


class Watch:
    """Asks a daemon over and over, and works rates out."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._before: Mapping[str, Told] = {}
        self._asked_s: float | None = None

    async def ask(self, wish: Wish) -> list[Told]:
        """Clients as they are now, those first that the wish wants first."""
        clients: list[Told] = await self._caller.ask("clients", sort="lines", limit=0)
        now_s = trio.current_time()
        took_s = None if self._asked_s is None else now_s - self._asked_s
        for client in clients:
            before = self._before.get(client["client"], dict.fromkeys(RATES, 0))
            for count, rate in RATES.items():
                client[rate] = round((client[count] - before[count]) / took_s, 1) if took_s else None
        self._before, self._asked_s = {client["client"]: client for client in clients}, now_s
        rate = RATES.get(wish.by, wish.by)
        clients.sort(key=lambda one: (-(one[rate] or 0), -one[wish.by], one["client"]))
        return clients[: wish.limit]


@contextmanager
def _in_words(config: Config) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise StoreDown(f"no daemon runs on {state_folder(config)}, or it is another user's: {exc.strerror}") from exc


async def _print(config: Config, wish: Wish, once: bool, as_json: bool) -> None:
    """Tell it a table, or a line of JSON, at a time."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    with _in_words(config):
        caller = await Caller.connect(control_path(config))
    try:
        watch = Watch(caller)
        if wish.interval_s:
            await watch.ask(wish)
        while True:
            await trio.sleep(wish.interval_s)
            clients = await watch.ask(wish)
            if as_json:
                click.echo(msgspec.json.encode({"clients": clients}))
            else:
                console.print(_table(clients, wish))
            if once:
                return
    finally:
        await caller.aclose()


async def _watch(config: Config, wish: Wish, *_: bool) -> None:
    """Keep a table on the terminal up to date, until q."""
    with _in_words(config):
        caller = await Caller.connect(control_path(config))
    watch = Watch(caller)
    with _single_keys(), Live(_table(await watch.ask(wish), wish, KEYS), screen=True, auto_refresh=False) as live:
        while True:
            key = ""
            with trio.move_on_after(wish.interval_s):
                key = await _key()
            if key == "q":
                break
            wish = wish._replace(by=SORTS.get(key, wish.by))
            live.update(_table(await watch.ask(wish), wish, KEYS), refresh=True)
    await caller.aclose()


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys come as they are pressed."""
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


async def _key() -> str:
    await trio.lowlevel.wait_readable(sys.stdin)
    return sys.stdin.read(1)


def _table(clients: Sequence[Told], wish: Wish, caption: str | None = None) -> Table:
    table = Table(box=None, pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("CLIENT", no_wrap=True, min_width=15)
    for head, count in (
        ("CONN", "connections"), ("LINES/S", "lines"), ("KB/S", "bytes"), ("REFUSED/S", "refused"),
        ("NEW NAMES/S", "new_names"), ("LINES", ""), ("REFUSED", ""), ("NAMES", ""), ("SERIES", ""), ("PAUSED", ""),
    ):  # fmt: skip
        table.add_column(head, justify="right", style="bold" if count == wish.by else "", no_wrap=True)
    table.add_column("LAST REFUSED", no_wrap=True, overflow="ellipsis", min_width=12)
    for client in clients:
        table.add_row(Text(client["client"]), *_cells(client), Text(_example(client)))
    return table


def _cells(client: Told) -> Iterator[str]:
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


def _example(client: Told) -> str:
    """Why its last refused line was refused, and the line; no stranger's control characters."""
    example = client["refused_example"]
    if not example:
        return ""
    text = f"{example['message']} ← {example['line']}"
    return "".join(one if one.isprintable() else "·" for one in text)
