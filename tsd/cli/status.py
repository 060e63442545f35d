"""`tsd version`.

`tsd check-config`: print all errors of a configuration.

`tsd health`: print the health checks of a running daemon.
"""

import json
import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from itertools import groupby
from typing import TYPE_CHECKING

import click

from tsd import build_data, version_reply
from tsd.cli.control import connect
from tsd.cli.options import closed_output_ignored
from tsd.cli.settings import shown, with_config
from tsd.config.health import CHECKS, OK
from tsd.config.in_use import in_use
from tsd.config.loader import (
    Loaded,
    has_checked_store,
    journal_folder,
    lacks_static_files,
    named_files,
    state_folder,
)
from tsd.config.settings import Config
from tsd.config.state_dir import JOURNAL, STATE, check_content, check_folder
from tsd.errors import BadConfig, StoreDown, TsdError
from tsd.lazy import LazyModule

if TYPE_CHECKING:
    import trio

    from tsd.daemon import builders, wiring
else:  # for check-config only
    trio = LazyModule("trio")
    builders = LazyModule("tsd.daemon.builders")
    wiring = LazyModule("tsd.daemon.wiring")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def version(loaded: Loaded, as_json: bool) -> None:  # noqa: ARG001 - every command takes the same options
    """Print the version, like the telnet command `version`."""
    compiled = find_spec("tsd.ingest._parser") is not None and not os.environ.get("TSD_PURE")
    if as_json:
        click.echo(json.dumps({**build_data(), "compiled": compiled}))
    else:
        click.echo(version_reply(compiled=compiled), nl=False)


@click.command("check-config")
@click.option("--show", is_flag=True, help="Print every key with its value.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object: every key with its value, warnings, and what is missing or wrong.",
)
@with_config
def check_config(loaded: Loaded, show: bool, as_json: bool) -> None:
    """Check a configuration with the files that it names, and print settings without effect. Exit status 2 if it has
    errors.

    On Bigtable the service is asked, too: whether credentials, names and permissions work, and whether the tables are
    there. On Cassandra, whether it can be reached with the user, the password and TLS. On HBase, whether a gateway
    answers, and whether tables are disabled or lack a family. With tsd.entity.enabled, whether the tables of entities
    exist and keep enough versions; in OpenTSDB's tables, whether UIDs have the configured widths. Exit status 3 if not.
    Missing tables on Cassandra and HBase are named, with exit status 0.
    """
    settings = in_use(loaded.config)
    if as_json:
        report = {
            "settings": settings,
            "ignored": list(loaded.ignored.keys),
            "unsupported": loaded.ignored.unsupported,
            "repeated": [one._asdict() for one in loaded.repeated],
            "lacks_static_files": lacks_static_files(loaded.config),
            "unused_accounts": _has_unused_accounts(loaded.config),
        }
        missing, error = "", None
        try:
            with loaded.placed_problems():
                missing = _check_places(loaded.config)
        except TsdError as exc:
            error = exc
        with closed_output_ignored():
            click.echo(json.dumps({**report, "missing": missing, "error": error and str(error)}))
        if error is not None:
            raise error
        return
    with closed_output_ignored():
        for key, value in settings.items() if show else ():
            click.echo(f"{key} = {value}")
    reason_of = loaded.ignored.keys.__getitem__
    for reason, ignored in groupby(sorted(loaded.ignored.keys, key=reason_of), reason_of):
        click.echo(f"ignored: {' '.join(ignored)} ({reason})", err=True)
    for key, consequence in loaded.ignored.unsupported.items():
        click.echo(f"{key} is not supported: {consequence}", err=True)
    for key, where, instead in loaded.repeated:
        click.echo(f"{where}: {key}: has no effect, as {instead} sets it again", err=True)
    if lacks_static_files(loaded.config):
        click.echo(f"tsd.http.staticroot: there is no folder {loaded.config.staticroot}; only /s/ needs one", err=True)
    if _has_unused_accounts(loaded.config):
        click.echo("tsd.auth.file: has no effect without tsd.core.authentication.enable = true", err=True)
    missing = _check_places(loaded.config)
    click.echo(f"{shown(loaded)}: {missing or 'no problem found'}", err=True)


def _check_places(config: Config) -> str:
    """Check folders, files and the store. Return which tables are missing where the daemon does not need them to
    start, or an empty text. Raise BadConfig, StoreError."""
    _check_folders(config)
    if _needs_server(config):
        builders.check_files(config)
    missing = trio.run(wiring.check_store, config) if has_checked_store(config) else ""
    if config.entity:
        trio.run(wiring.check_entities, config)
    return missing


def _check_folders(config: Config) -> None:
    """Raise BadConfig if files have the paths of the daemon's folders, or the state folder has other content."""
    problems = []
    for folder_of, kind in ((state_folder, STATE), (journal_folder, JOURNAL)):
        if kind is STATE or config.journal_path:
            try:
                check_folder(folder_of(config), kind)
                if kind is STATE:
                    check_content(state_folder(config), kind, named_files(config))
            except TsdError as exc:
                problems.append(str(exc))
    if problems:
        raise BadConfig(problems)


def _has_unused_accounts(config: Config) -> bool:
    """Return whether accounts are set, and no client is asked for one."""
    return bool(config.auth_file) and not config.authentication


def _needs_server(config: Config) -> bool:
    """Return whether some settings can be checked only by modules of the server, which take time to import."""
    files = config.rollups_config, config.histograms_config, config.query_overrides, config.tls_certificate
    return any(map(str.strip, files)) or config.authentication or config.bind != "127.0.0.1"


TIMEOUT_S = 10.0  # for a running daemon's response; the daemon waits up to a third of it for the store


@click.command()
@click.argument("which", type=click.Choice(list(CHECKS)), default="ready")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_config
def health(loaded: Loaded, which: str, as_json: bool) -> None:
    """Print whether the daemon of this state folder passes the check WHICH. Exit status 1, with the reasons, if not.

    It uses the control socket, so it needs no port and no token. HTTP has the same at /health/WHICH.
    """
    found = _check_health(loaded.config, which)
    with closed_output_ignored():
        if as_json:
            click.echo(json.dumps(found))
        else:
            for check, result in found.items():
                click.echo(f"{check}: {result}")
    sys.exit(0 if found["status"] == OK else 1)


def _check_health(config: Config, which: str) -> Mapping[str, str]:
    try:
        daemon = connect(config, timeout_s=TIMEOUT_S)
    except StoreDown as exc:
        raise TsdError(str(exc)) from exc  # with status 1, as for a check that fails
    with daemon:
        found: Mapping[str, str] = daemon.call("health", which=which)
        return found
