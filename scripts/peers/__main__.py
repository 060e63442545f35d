"""The commands `scripts/hbase`, `scripts/opentsdb`, `scripts/cassandra`, `scripts/kairosdb` and `scripts/bigtable`."""

import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from scripts.peers import bigtable, cassandra, hbase, java, kairosdb, opentsdb
from scripts.peers.ports import HOST
from scripts.peers.process import PeerError

NOT_RUNNING = 3  # exit status as in init scripts


class Peer(NamedTuple):
    """A program that can be run, and the command that runs it."""

    module: ModuleType
    add_options: Callable[[ArgumentParser], None]  # of `start`: those of the module's `Options`
    answers: Callable[[Any], str]  # what to print of that which `start` returns
    verbs: Mapping[str, str]  # other verbs, each a function of the module on the folder, with their help
    check: Callable[[], object]  # raises PeerError if it cannot run here
    fetch: Callable[[], object]


def setting(text: str) -> tuple[str, str]:
    """Split KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"got {text!r}, wanted KEY=VALUE")
    return key, value


def add_hbase_options(start: ArgumentParser) -> None:
    """Add the options of HBase."""
    start.add_argument("--port", type=int, help=f"of the Thrift gateway; 0: any free one (default {hbase.THRIFT_PORT})")
    start.add_argument(
        "--thrift2-port", type=int, help=f"of the Thrift 2 gateway; 0: any free one (default {hbase.THRIFT2_PORT})"
    )
    start.add_argument("--zk-port", type=int, help=f"of ZooKeeper; 0: any free one (default {hbase.ZK_PORT})")
    start.add_argument("--heap", default=hbase.Options.heap, help="of HBase, as -Xmx takes it (default %(default)s)")
    start.add_argument("--thrift-heap", default=hbase.Options.thrift_heap, help="of each gateway (default %(default)s)")
    add_settings(start, "hbase-site.xml")
    add_quick(start)


def add_opentsdb_options(start: ArgumentParser) -> None:
    """Add the options of OpenTSDB."""
    add_settings(start, "opentsdb.conf")
    start.add_argument("--port", type=int, help=f"0: any free one (default {opentsdb.PORT})")
    start.add_argument(
        "--zk-port", type=int, default=hbase.ZK_PORT, help="ZooKeeper of its HBase (default %(default)s)"
    )
    start.add_argument("--heap", default=opentsdb.Options.heap, help="as -Xmx takes it (default %(default)s)")
    add_quick(start)


def add_cassandra_options(start: ArgumentParser) -> None:
    """Add the options of Cassandra."""
    start.add_argument("--port", type=int, help=f"of CQL; 0: any free one (default {cassandra.PORT})")
    start.add_argument(
        "--storage-port", type=int, help=f"between nodes; 0: any free one (default {cassandra.STORAGE_PORT})"
    )
    start.add_argument("--heap", default=cassandra.Options.heap, help="as -Xmx takes it (default %(default)s)")
    start.add_argument("--password", action="store_true", help="ask clients for user and password")
    start.add_argument(
        "--keystore", type=Path, help="certificate and key of the node for TLS: PKCS 12, password cassandra"
    )
    start.add_argument("--durable", action="store_true", help="sync the log before acknowledging writes")
    add_quick(start)


def add_bigtable_options(start: ArgumentParser) -> None:
    """Add the options of Bigtable's emulator."""
    start.add_argument("--port", type=int, help=f"0: any free one (default {bigtable.PORT})")


def add_kairosdb_options(start: ArgumentParser) -> None:
    """Add the options of KairosDB."""
    add_settings(start, "below kairosdb")
    start.add_argument("--port", type=int, help=f"of HTTP; 0: any free one (default {kairosdb.PORT})")
    start.add_argument("--telnet-port", type=int, help=f"0: any free one (default {kairosdb.TELNET_PORT})")
    start.add_argument("--cql-port", type=int, default=cassandra.PORT, help="of its Cassandra (default %(default)s)")
    start.add_argument("--keyspace", default=kairosdb.Options.keyspace, help="of its tables (default %(default)s)")
    start.add_argument("--heap", default=kairosdb.Options.heap, help="as -Xmx takes it (default %(default)s)")
    add_quick(start)


def add_settings(start: ArgumentParser, help_text: str) -> None:
    """Add the option for settings of the program."""
    start.add_argument(
        "--set", dest="settings", type=setting, action="append", default=[], metavar="KEY=VALUE", help=help_text
    )


def add_quick(start: ArgumentParser) -> None:
    """Add the option for tests."""
    start.add_argument("--quick", action="store_true", help="faster start, slower operation: for tests")


STOPS = {"stop": "stop it cleanly", "kill": "kill it"}
PEERS = {
    "hbase": Peer(
        hbase,
        add_hbase_options,
        lambda started: (
            f"HBase answers: Thrift on {HOST}:{started.thrift_port}, Thrift 2 on {HOST}:{started.thrift2_port}, "
            f"ZooKeeper on {HOST}:{started.zk_port}"
        ),
        {
            **STOPS,
            "thrift-start": "start the gateways, or resume paused ones",
            "thrift-stop": "stop the gateways cleanly",
            "thrift-kill": "kill the gateways",
            "thrift-pause": "pause the gateways",
            "thrift-resume": "resume paused gateways without waiting for an answer",
        },
        partial(java.check, hbase.HBASE),
        partial(java.fetch, hbase.HBASE),
    ),
    "opentsdb": Peer(
        opentsdb,
        add_opentsdb_options,
        lambda port: f"OpenTSDB answers on {HOST}:{port}",
        STOPS,
        partial(java.check, opentsdb.NAME),
        partial(java.fetch, opentsdb.NAME),
    ),
    "cassandra": Peer(
        cassandra,
        add_cassandra_options,
        lambda started: f"Cassandra answers on {HOST}:{started.port}",
        {**STOPS, "pause": "pause it", "resume": "resume a paused one without waiting for an answer"},
        partial(java.check, cassandra.NAME),
        partial(java.fetch, cassandra.NAME),
    ),
    "kairosdb": Peer(
        kairosdb,
        add_kairosdb_options,
        lambda ports: f"KairosDB answers on {HOST}:{ports.port}, telnet on {HOST}:{ports.telnet_port}",
        STOPS,
        partial(java.check, kairosdb.NAME),
        partial(java.fetch, kairosdb.NAME),
    ),
    "bigtable": Peer(
        bigtable,
        add_bigtable_options,
        lambda started: f"Bigtable's emulator answers on {HOST}:{started.port}",
        {
            "stop": "stop it: its data is gone",
            "kill": "kill it: its data is gone",
            "pause": "pause it",
            "resume": "resume a paused one",
        },
        bigtable.check,
        bigtable.fetch,
    ),
}


def parser_of(name: str, peer: Peer) -> ArgumentParser:
    """Return the parser of `scripts/NAME`. What it parses has a function `act` that takes it."""
    module = peer.module
    parser = ArgumentParser(
        prog=f"scripts/{name}", description=module.__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    fetch = verbs.add_parser("fetch", help="check for Java, and fetch what is missing")
    fetch.add_argument("--check", action="store_true", help="fetch nothing, only report what is missing")
    fetch.set_defaults(act=lambda arguments: peer.check() if arguments.check else peer.fetch())
    start = verbs.add_parser("start", help="start it in DIR unless it runs, and wait until it answers")
    start.add_argument("dir", type=Path, metavar="DIR")
    peer.add_options(start)
    start.add_argument("--until-exit", dest="owner", type=int, metavar="PID", help="kill it when this process ends")
    start.set_defaults(
        act=lambda arguments: print(peer.answers(module.start(arguments.dir, options_of(peer, arguments))))
    )
    for verb, help_text in peer.verbs.items():
        add_verb(verbs.add_parser(verb, help=help_text), getattr(module, verb.replace("-", "_")))
    help_text = f"list running processes; exit status {NOT_RUNNING} if there are none"
    add_verb(verbs.add_parser("status", help=help_text), lambda home: show(module.status(home), home))
    return parser


def options_of(peer: Peer, arguments: Namespace) -> object:
    """Return the options of a start."""
    given = {field.name: getattr(arguments, field.name) for field in fields(peer.module.Options)}
    if "settings" in given:
        given["settings"] = dict(given["settings"])
    return peer.module.Options(**given)


def add_verb(parser: ArgumentParser, act: Callable[[Path], object]) -> None:
    """Have a parser take a folder, on which `act` works."""
    parser.add_argument("dir", type=Path, metavar="DIR")
    parser.set_defaults(act=lambda arguments: act(arguments.dir))


def show(lines: list[str], home: Path) -> None:
    """Print the running processes, or exit with NOT_RUNNING."""
    print("\n".join(lines) or f"nothing runs in {home}")
    if not lines:
        sys.exit(NOT_RUNNING)


def terminated(signum: int, _frame: FrameType | None) -> None:
    """Exit by an exception, so that a start in progress cleans up."""
    sys.exit(128 + signum)


def main(arguments: Sequence[str]) -> None:
    """Run `hbase …`, `opentsdb …`, `cassandra …`, `kairosdb …` or `bigtable …`."""
    signal.signal(signal.SIGTERM, terminated)
    name, *words = arguments
    parser = parser_of(name, PEERS[name])
    options = parser.parse_args(words)
    if "dir" in options:
        options.dir = options.dir.absolute()
    try:
        options.act(options)
    except PeerError as exc:
        sys.exit(f"{parser.prog}: {exc}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main(sys.argv[1:])
