"""`tsd torture`: whether what daemons of these settings acknowledge survives whatever is done to them."""

import json
import math
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import click
import trio

from tsd.assembly import opened_store, tables
from tsd.cli.options import with_config
from tsd.cli.progress import Progress
from tsd.config import Backend, Config, Loaded, state_folder
from tsd.errors import TsdError
from tsd.store.hbase import HBaseStore
from tsd.torture.faults import ANYWHERE, ON_HBASE, USUAL, BadPlan, Knobs, chosen
from tsd.torture.house import Ground
from tsd.torture.ledger import Ledger, table
from tsd.torture.run import Plan, Run
from tsd.torture.settings import config_of, tortured

PATIENT = {"tsd.storage.hbase.thrift.timeout": "60000"}  # ours, who make tables, beside daemons that push


class Span(click.ParamType):  # type: ignore[type-arg] # older ones take none
    """SHORTEST:LONGEST, in seconds; one number is both."""

    name = "S[:S]"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        """The two of them."""
        if isinstance(value, tuple):
            return value
        shortest, _, longest = str(value).partition(":")
        try:
            found = float(shortest), float(longest or shortest)
        except ValueError:
            self.fail(f"got {value!r}, wanted seconds, or SHORTEST:LONGEST", param, ctx)
        if not 0 < found[0] <= found[1]:
            self.fail(f"got {value!r}, wanted two times of which the second is no shorter", param, ctx)
        return found


@click.command()
@click.option(
    "--faults", default="", metavar="A,B=ROUNDS,…", help=f"Which ({', '.join([*ANYWHERE, *ON_HBASE])}). Default: all."
)
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(1), help="Of each fault.")
@click.option("--seed", type=int, help="What is drawn is drawn again with the same seed. Default: drawn.")
@click.option("--daemons", default=2, show_default=True, type=click.IntRange(1), help="That run side by side.")
@click.option("--duration", type=click.FloatRange(0, min_open=True), help="Seconds after which no round begins.")
@click.option("--outage", default="1:3", show_default=True, type=Span(), help="How long HBase is away, in seconds.")
@click.option("--warm-up", default=USUAL.full_load, show_default=True, help="Lines before an outage.")
@click.option("--folder", type=click.Path(path_type=Path), help="Where daemons work. Default: beside the state folder.")
@click.option("--keep", is_flag=True, help="Leave folder and tables as they are at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the ledger as JSON.")
@with_config
def torture(
    loaded: Loaded,
    faults: str,
    rounds: int,
    seed: int | None,
    daemons: int,
    duration: float | None,
    outage: tuple[float, float],
    warm_up: int,
    folder: Path | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Load daemons of these settings, harm them, and look whether everything they acknowledged is there.

    The daemons have a folder, ports and, on HBase, tables of their own; yours are not touched. See docs/torture.md.

    Exit status 0 where nothing acknowledged was lost, nothing invented or doubled, and every daemon went on by itself;
    else 1, and folder and tables are left for you to see. 1, too, where no round was done.
    """
    config = loaded.config
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    wanted = _wanted(faults, rounds, config)
    plan = Plan(wanted, seed, daemons, Knobs(outage_s=outage, full_load=warm_up), duration or math.inf)
    place = _folder(config, folder)
    shown = ", ".join(f"{name} {count}" for name, count in wanted.items())
    click.echo(f"tsd: seed {seed}, in {place}, rounds: {shown}", err=True)
    try:
        ledgers = trio.run(_run, plan, config, place, keep)
    except BaseException:
        with suppress(OSError):
            place.rmdir()  # where nothing was begun
        raise
    good = all(ledger.good for _, ledger in ledgers)
    if good and not keep:
        shutil.rmtree(place)
    done = sum(ledger.rounds for _, ledger in ledgers)
    told = _as_json(seed, ledgers) if as_json else "\n".join(_in_words(ledgers))
    click.echo(told)
    if not good:
        again = f"--seed {seed} --faults {','.join(name for name, ledger in ledgers if not ledger.good)}"
        click.echo(f"tsd: NOT GOOD. Logs, journals and stores are in {place}; to do it again: {again}", err=True)
    elif not done:
        click.echo("tsd: NOT GOOD. No round was done: nothing was tried", err=True)
    sys.exit(0 if good and done else 1)


def _wanted(faults: str, rounds: int, config: Config) -> dict[str, int]:
    """How many rounds of which fault."""
    try:
        return chosen(faults, rounds, hbase=config.backend is Backend.HBASE)
    except BadPlan as exc:
        raise click.UsageError(f"--faults: {exc}") from exc


def _folder(config: Config, wanted: Path | None) -> Path:
    """A folder of our own: on the disk that the user's daemon works on, unless another is named."""
    if wanted is not None:
        wanted.mkdir(parents=True)
        return wanted.absolute()
    state = state_folder(config)
    state.parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{state.name}-torture-", dir=state.parent))


async def _run(plan: Plan, config: Config, folder: Path, keep: bool) -> list[tuple[str, Ledger]]:
    async with _ground(config, folder) as (ground, dropping):
        progress = Progress("rounds", sum(plan.rounds.values()))
        run = Run(plan, ground, folder, lambda: progress.add(1))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_on_signal, run)
                await run.go()
                nursery.cancel_scope.cancel()
        finally:
            progress.close()
        ledgers = run.ledgers()
        dropping.append(not keep and all(ledger.good for _, ledger in ledgers))
        return ledgers


async def _stop_on_signal(run: Run) -> None:
    """The first signal lets rounds end and be judged; the second one ends everything."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            click.echo("tsd: no other round begins; once more to end at once", err=True)
            run.stop()
            break


@asynccontextmanager
async def _ground(config: Config, folder: Path) -> AsyncIterator[tuple[Ground, list[bool]]]:
    """What houses stand on. On HBase tables are made, and dropped at the end if the list that comes along says so."""
    prefix = f"{folder.name}-".replace(".", "-")
    own = config_of({**tortured(config, prefix, folder / "state", config.thrift), **PATIENT})
    dropping: list[bool] = []
    if config.backend is Backend.EMBEDDED:
        yield Ground(config, prefix, own, None), dropping
        return
    async with opened_store(own) as store:
        assert isinstance(store, HBaseStore)
        made = await store.create_tables(tables(own))
        if others := sorted({table.name for table in tables(own)} - set(made)):
            await store.drop_tables(made)
            raise TsdError(
                f"{others[0]}: the table is there already, of a run that goes on, or whose tables were kept: wanted "
                f"tables of our own. Give another --folder, or drop the tables of {prefix}…"
            )
        try:
            yield Ground(config, prefix, own, store), dropping
        finally:
            if not dropping or dropping[-1]:
                with trio.CancelScope(shield=True):
                    await store.drop_tables(made)


def _in_words(ledgers: list[tuple[str, Ledger]]) -> list[str]:
    total = Ledger()
    for _, ledger in ledgers:
        total.add(ledger)
    lines = table([*ledgers, ("all", total)])
    lines.append("faults: " + ", ".join(f"{name} {count}" for name, count in total.faults.items()))
    lines += [f"refused: {reason}: {count}" for reason, count in total.refused.items()]
    lines += [f"highest {name}: {figure:.2f}" for name, figure in total.worst.items()]
    for name in ("lost", "invented", "doubled"):
        lines += [f"{name}: {example}" for example in getattr(total, name).examples]
    return lines + [f"trouble: {told}" for told in total.troubles]


def _as_json(seed: int, ledgers: list[tuple[str, Ledger]]) -> str:
    total = Ledger()
    for _, ledger in ledgers:
        total.add(ledger)
    return json.dumps(
        {
            "seed": seed,
            "good": total.good and total.rounds > 0,
            "all": total.told(),
            **{name: ledger.told() for name, ledger in ledgers},
        },
        indent=2,
    )
