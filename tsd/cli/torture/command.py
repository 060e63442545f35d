"""`tsd torture`: test with these settings that acknowledged lines survive faults."""

import json
import math
import random
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import click
import trio

from tsd.cli.output import Progress
from tsd.cli.torture.environment import Setup
from tsd.cli.torture.options import CRASH, ON_PROCESSES, BadFaults, Options, parse_faults
from tsd.cli.torture.report import TortureReport, table
from tsd.cli.torture.run import Run, TorturePlan
from tsd.cli.torture.servers import Servers, processes_of
from tsd.cli.torture.settings import config_of, daemon_settings
from tsd.config.loader import Loaded, state_folder
from tsd.config.settings import Config
from tsd.config.state_dir import FolderKind, folder_errors
from tsd.daemon.settings import now_ms
from tsd.daemon.wiring import (
    ServedStore,
    create_tables,
    default_compression,
    has_local_store,
    served_store,
    server_addresses,
    server_setting,
    uses_bigtable,
)
from tsd.errors import TsdError
from tsd.tables.kairosdb.layout import make_tables

FOLDER = FolderKind("folder for the runs", "--folder")
PATIENT = {  # of this process, which creates tables
    "tsd.storage.hbase.thrift.timeout": "60000",
    "tsd.storage.bigtable.timeout": "60000",
    "tsd.storage.cassandra.timeout": "60000",
}


def torture(
    loaded: Loaded,
    faults: str,
    rounds: int,
    seed: int | None,
    daemons: int,
    duration: float | None,
    outage: tuple[float, float],
    warm_up: int,
    restart: str,
    folder: Path | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Run `tsd torture`."""
    config = loaded.config
    if not has_local_store(config) and not server_setting(config):
        places = "the embedded store, HBase, Cassandra or an emulator of Bigtable"
        raise TsdError(f"got the engine {config.backend.value}: torture runs on {places}")
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    wanted = _wanted(faults, rounds, config)
    command = restart_command(restart, wanted)
    if not wanted.keys().isdisjoint(ON_PROCESSES):
        processes_of(server_addresses(config))
        if len(wanted) > 1:
            daemons = 1  # rounds of other faults would use the same servers
    plan = TorturePlan(wanted, seed, daemons, Options(outage_s=outage, full_load=warm_up), duration or math.inf)
    place = _folder(config, folder)
    shown = ", ".join(f"{name} {count}" for name, count in wanted.items())
    click.echo(f"tsd: seed {seed}, in {place}, rounds: {shown}", err=True)
    try:
        reports = trio.run(_run, plan, config, place, keep, command)
    except BaseException:
        with suppress(OSError):
            place.rmdir()  # if no round was started
        raise
    good = all(report.good for _, report in reports)
    if good and not keep:
        shutil.rmtree(place)
    done = sum(report.rounds for _, report in reports)
    text = _as_json(seed, reports) if as_json else "\n".join(_in_words(reports))
    click.echo(text)
    if not good:
        again = f"--seed {seed} --faults {','.join(name for name, report in reports if not report.good)}"
        click.echo(f"tsd: NOT GOOD. Logs, journals and stores are in {place}; repeat with: {again}", err=True)
    elif not done:
        click.echo("tsd: NOT GOOD. No round was completed: nothing was tested", err=True)
    sys.exit(0 if good and done else 1)


def _wanted(faults: str, rounds: int, config: Config) -> dict[str, int]:
    """Return the number of rounds of each fault."""
    try:
        servers = bool(server_setting(config))
        return parse_faults(faults, rounds, servers=servers, bigtable=uses_bigtable(config))
    except BadFaults as exc:
        raise click.UsageError(f"--faults: {exc}") from exc


def restart_command(restart: str, wanted: Mapping[str, int]) -> list[str]:
    """Return the words of the command that starts killed servers again. Raise UsageError if none are killed."""
    try:
        words = shlex.split(restart)
    except ValueError as exc:
        raise click.UsageError(f"--restart: got {restart!r}, wanted a command: {exc}") from exc
    if words and CRASH not in wanted:
        raise click.UsageError(f"--restart: wanted the fault {CRASH} with it")
    return words


def _folder(config: Config, wanted: Path | None) -> Path:
    """Create the working folder: on the disk of the user's daemon by default. Raise TsdError, UsageError."""
    if wanted is not None:
        with folder_errors(wanted, FOLDER):
            try:
                wanted.mkdir(parents=True)
            except FileExistsError:
                raise click.UsageError(f"--folder: {wanted} exists, wanted a new folder") from None
        return wanted.absolute()
    state = state_folder(config)
    with folder_errors(state.parent, FOLDER):
        state.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{state.name}-torture-", dir=state.parent))


async def _run(
    plan: TorturePlan, config: Config, folder: Path, keep: bool, restart: Sequence[str]
) -> list[tuple[str, TortureReport]]:
    together = min(plan.lanes, plan.rounds.get(CRASH, 0))
    async with _opened_setup(config, folder, restart, together) as (setup, dropping):
        with Progress("rounds", sum(plan.rounds.values())) as progress:
            run = Run(plan, setup, folder, lambda: progress.add(1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop_on_signal, run)
                await run.run()
                nursery.cancel_scope.cancel()
        reports = run.reports()
        dropping.append(not keep and all(report.good for _, report in reports))
        return reports


async def _stop_on_signal(run: Run) -> None:
    """Let the current rounds finish after the first signal. A second signal ends the process."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            click.echo("tsd: finishing the current rounds; interrupt again to end at once", err=True)
            run.stop()
            break


@asynccontextmanager
async def _opened_setup(
    config: Config, folder: Path, restart: Sequence[str], together: int
) -> AsyncIterator[tuple[Setup, list[bool]]]:
    """Yield the setup, with tables created on servers, and a list: append True to it to drop them at the end."""
    prefix = f"{folder.name}-".replace(".", "-")
    key = server_setting(config)
    addresses = ",".join(f"{host}:{port}" for host, port in server_addresses(config)) if key else ""
    own = config_of({**daemon_settings(config, prefix, folder / "state", addresses), **PATIENT})
    dropping: list[bool] = []
    if not key:
        yield Setup(config, prefix, own, None, Servers(())), dropping
        return
    store = served_store(own)
    try:
        found = await create_tables(own, store, default_compression(own))
        made = [name for name, is_new in found.items() if is_new]
        if others := sorted(found.keys() - set(made)):
            await _drop_tables(own, store, made)
            raise TsdError(
                f"{others[0]}: the table exists already: another run uses it or has kept it. "
                f"Give another --folder, or drop the tables of {prefix}…"
            )
        try:
            servers = Servers(server_addresses(config), restart, together=together)
            yield Setup(config, prefix, own, store, servers), dropping
        finally:
            if not dropping or dropping[-1]:
                with trio.CancelScope(shield=True):
                    await _drop_tables(own, store, made)
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


async def _drop_tables(config: Config, store: ServedStore, names: Sequence[str]) -> None:
    """Delete tables of a run with their contents, KairosDB's with their keyspace. Raise StoreError."""
    if not config.has_kairosdb_tables:
        await store.drop_tables(names)
    elif names:
        await make_tables(store, config.cassandra_keyspace, now_ms).drop()


def _in_words(reports: list[tuple[str, TortureReport]]) -> list[str]:
    total = TortureReport()
    for _, report in reports:
        total.add(report)
    lines = table([*reports, ("all", total)])
    lines.append("faults: " + ", ".join(f"{name} {count}" for name, count in total.faults.items()))
    lines += [f"refused: {reason}: {count}" for reason, count in total.refused.items()]
    lines += [f"highest {name}: {figure:.2f}" for name, figure in total.maxima.items()]
    for name in ("lost", "invented", "doubled"):
        lines += [f"{name}: {example}" for example in getattr(total, name).examples]
    return lines + [f"error: {text}" for text in total.errors]


def _as_json(seed: int, reports: list[tuple[str, TortureReport]]) -> str:
    total = TortureReport()
    for _, report in reports:
        total.add(report)
    return json.dumps(
        {
            "seed": seed,
            "good": total.good and total.rounds > 0,
            "all": total.as_dict(),
            **{name: report.as_dict() for name, report in reports},
        },
        indent=2,
    )
