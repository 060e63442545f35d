"""The command `tsd`: one module per command, each a thin wrapper."""

import sys

import click

from tsd.cli.compact import compact
from tsd.cli.context import config_options
from tsd.cli.copy import copy, create_tables
from tsd.cli.delete import delete
from tsd.cli.fsck import fsck
from tsd.cli.importer import import_lines, send
from tsd.cli.query import query
from tsd.cli.rejected import rejected
from tsd.cli.scan import scan
from tsd.cli.serve import check_config, health, serve, version
from tsd.cli.token import token
from tsd.cli.top import top
from tsd.cli.torture.command import torture
from tsd.cli.uid import mkmetric, uid
from tsd.errors import BadConfig, DaemonRuns, NewerState, StoreError, TsdError

STORE_FAILED = 3  # exit status if HBase or the embedded store failed
FOLDER_TAKEN = 4  # exit status if another process or a newer version uses the state folder


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@config_options
def tsd(**_: object) -> None:
    """An OpenTSDB-compatible time-series daemon, on an embedded RocksDB or on HBase.

    Every command takes --config, --data and --set as well, before or after its name. conf/tsd.conf describes the keys.
    """


for _command in (
    serve, check_config, create_tables, mkmetric, uid, import_lines, query, scan, compact, delete, fsck, copy, send,
    health, rejected, top, token, torture, version,
):  # fmt: skip
    tsd.add_command(_command)


def main() -> None:
    """Run a command. Print errors to standard error and exit with their status."""
    try:
        tsd(prog_name="tsd")
    except BadConfig as exc:
        for problem in exc.problems:
            click.echo(f"tsd: {problem}", err=True)
        sys.exit(2)
    except StoreError as exc:
        click.echo(f"tsd: {exc}", err=True)
        sys.exit(STORE_FAILED)
    except (DaemonRuns, NewerState) as exc:
        click.echo(f"tsd: {exc}", err=True)
        sys.exit(FOLDER_TAKEN)
    except TsdError as exc:
        click.echo(f"tsd: {exc}", err=True)
        sys.exit(1)
