"""The command `tsd`: one module a command, each a thin wrapper."""

import sys

import click

from tsd.cli.check_config import check_config
from tsd.cli.compact import compact
from tsd.cli.copy import copy
from tsd.cli.delete import delete
from tsd.cli.fsck import fsck
from tsd.cli.health import health
from tsd.cli.importer import import_lines
from tsd.cli.options import config_options
from tsd.cli.query import query
from tsd.cli.rejected import rejected
from tsd.cli.scan import scan
from tsd.cli.send import send
from tsd.cli.serve import serve
from tsd.cli.tables import create_tables
from tsd.cli.token import token
from tsd.cli.top import top
from tsd.cli.torture import torture
from tsd.cli.uid import mkmetric, uid
from tsd.cli.version import version
from tsd.errors import BadConfig, DaemonRuns, NewerState, StoreError, TsdError

STORE_FAILED = 3  # exit status where HBase or the database did not do its part
FOLDER_TAKEN = 4  # where another process, or a newer version, has the state folder


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@config_options
def tsd(**_: object) -> None:
    """An OpenTSDB-compatible time-series daemon, on an embedded RocksDB or on HBase.

    Every command takes --config, --data and --set as well, after its name or before; conf/tsd.conf describes the keys.
    """


for _command in (
    serve, check_config, create_tables, mkmetric, uid, import_lines, query, scan, compact, delete, fsck, copy, send,
    health, rejected, top, token, torture, version,
):  # fmt: skip
    tsd.add_command(_command)


def main() -> None:
    """Run a command; what is wrong goes to standard error, in words."""
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
