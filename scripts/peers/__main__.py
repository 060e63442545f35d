"""The commands `scripts/hbase`, `scripts/opentsdb`, `scripts/cassandra`, `scripts/kairosdb` and `scripts/bigtable`."""

import signal
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from scripts.peers import bigtable, cassandra, hbase, java, kairosdb, opentsdb
from scripts.peers.ports import HOST
from scripts.peers.process import PeerError

NOT_RUNNING = 3  # exit status as in init scripts


def setting(text: str) -> tuple[str, str]:
    """Split KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"got {text!r}, wanted KEY=VALUE")
    return key, value


def hbase_parser() -> ArgumentParser:
    """Add the options of `scripts/hbase`."""
    parser = ArgumentParser(
        prog="scripts/hbase", description=hbase.__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    add_fetch(verbs.add_parser, hbase.HBASE)
    start = verbs.add_parser("start", help="start it in DIR unless it runs, and wait until it answers")
    start.set_defaults(act=start_hbase)
    start.add_argument("dir", type=Path, metavar="DIR")
    start.add_argument("--port", type=int, help=f"of the Thrift gateway; 0: any free one (default {hbase.THRIFT_PORT})")
    start.add_argument(
        "--thrift2-port", type=int, help=f"of the Thrift 2 gateway; 0: any free one (default {hbase.THRIFT2_PORT})"
    )
    start.add_argument("--zk-port", type=int, help=f"of ZooKeeper; 0: any free one (default {hbase.ZK_PORT})")
    start.add_argument("--heap", default=hbase.Options.heap, help="of HBase, as -Xmx takes it (default %(default)s)")
    start.add_argument("--thrift-heap", default=hbase.Options.thrift_heap, help="of each gateway (default %(default)s)")
    start.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="hbase-site.xml")
    add_test_options(start)
    for verb, act, help_text in (
        ("stop", hbase.stop, "stop it cleanly"),
        ("kill", hbase.kill, "kill it"),
        ("thrift-start", hbase.thrift_start, "start the gateways, or resume paused ones"),
        ("thrift-stop", hbase.thrift_stop, "stop the gateways cleanly"),
        ("thrift-kill", hbase.thrift_kill, "kill the gateways"),
        ("thrift-pause", hbase.thrift_pause, "pause the gateways"),
        ("thrift-resume", hbase.thrift_resume, "resume paused gateways without waiting for an answer"),
    ):
        add_verb(verbs.add_parser, verb, act, help_text)
    add_status(verbs.add_parser, hbase.status)
    return parser


def opentsdb_parser() -> ArgumentParser:
    """Add the options of `scripts/opentsdb`."""
    parser = ArgumentParser(
        prog="scripts/opentsdb", description=opentsdb.__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    add_fetch(verbs.add_parser, opentsdb.NAME)
    start = verbs.add_parser("start", help="start it in DIR unless it runs, and wait until it answers")
    start.set_defaults(act=start_opentsdb)
    start.add_argument("dir", type=Path, metavar="DIR")
    start.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="opentsdb.conf")
    start.add_argument("--port", type=int, help=f"0: any free one (default {opentsdb.PORT})")
    start.add_argument(
        "--zk-port", type=int, default=hbase.ZK_PORT, help="ZooKeeper of its HBase (default %(default)s)"
    )
    start.add_argument("--heap", default=opentsdb.Options.heap, help="as -Xmx takes it (default %(default)s)")
    add_test_options(start)
    add_verb(verbs.add_parser, "stop", opentsdb.stop, "stop it cleanly")
    add_verb(verbs.add_parser, "kill", opentsdb.kill, "kill it")
    add_status(verbs.add_parser, opentsdb.status)
    return parser


def cassandra_parser() -> ArgumentParser:
    """Add the options of `scripts/cassandra`."""
    parser = ArgumentParser(
        prog="scripts/cassandra", description=cassandra.__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    add_fetch(verbs.add_parser, cassandra.NAME)
    start = verbs.add_parser("start", help="start it in DIR unless it runs, and wait until it answers")
    start.set_defaults(act=start_cassandra)
    start.add_argument("dir", type=Path, metavar="DIR")
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
    add_test_options(start)
    for verb, act, help_text in (
        ("stop", cassandra.stop, "stop it cleanly"),
        ("kill", cassandra.kill, "kill it"),
        ("pause", cassandra.pause, "pause it"),
        ("resume", cassandra.resume, "resume a paused one without waiting for an answer"),
    ):
        add_verb(verbs.add_parser, verb, act, help_text)
    add_status(verbs.add_parser, cassandra.status)
    return parser


def bigtable_parser() -> ArgumentParser:
    """Add the options of `scripts/bigtable`."""
    parser = ArgumentParser(
        prog="scripts/bigtable", description=bigtable.__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    fetched = verbs.add_parser("fetch", help="fetch the program if it is missing")
    fetched.add_argument("--check", action="store_true", help="fetch nothing, only report what is missing")
    fetched.set_defaults(act=lambda arguments: bigtable.check() if arguments.check else bigtable.fetch())
    start = verbs.add_parser("start", help="start it in DIR unless it runs, and wait until it answers")
    start.set_defaults(act=start_bigtable)
    start.add_argument("dir", type=Path, metavar="DIR")
    start.add_argument("--port", type=int, help=f"0: any free one (default {bigtable.PORT})")
    start.add_argument("--until-exit", type=int, metavar="PID", help="kill it when this process ends")
    for verb, act, help_text in (
        ("stop", bigtable.stop, "stop it: its data is gone"),
        ("kill", bigtable.kill, "kill it: its data is gone"),
        ("pause", bigtable.pause, "pause it"),
        ("resume", bigtable.resume, "resume a paused one"),
    ):
        add_verb(verbs.add_parser, verb, act, help_text)
    add_status(verbs.add_parser, bigtable.status)
    return parser


def kairosdb_parser() -> ArgumentParser:
    """Add the options of `scripts/kairosdb`."""
    parser = ArgumentParser(
        prog="scripts/kairosdb", description=kairosdb.__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    add_fetch(verbs.add_parser, kairosdb.NAME)
    start = verbs.add_parser("start", help="start it in DIR unless it runs, and wait until it answers")
    start.set_defaults(act=start_kairosdb)
    start.add_argument("dir", type=Path, metavar="DIR")
    start.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="below kairosdb")
    start.add_argument("--port", type=int, help=f"of HTTP; 0: any free one (default {kairosdb.PORT})")
    start.add_argument("--telnet-port", type=int, help=f"0: any free one (default {kairosdb.TELNET_PORT})")
    start.add_argument("--cql-port", type=int, default=cassandra.PORT, help="of its Cassandra (default %(default)s)")
    start.add_argument("--keyspace", default=kairosdb.Options.keyspace, help="of its tables (default %(default)s)")
    start.add_argument("--heap", default=kairosdb.Options.heap, help="as -Xmx takes it (default %(default)s)")
    add_test_options(start)
    add_verb(verbs.add_parser, "stop", kairosdb.stop, "stop it cleanly")
    add_verb(verbs.add_parser, "kill", kairosdb.kill, "kill it")
    add_status(verbs.add_parser, kairosdb.status)
    return parser


def add_fetch(add: Callable[..., ArgumentParser], name: str) -> None:
    """Add the verb `fetch`."""
    parser = add("fetch", help="check for Java, and fetch missing jars")
    parser.add_argument("--check", action="store_true", help="fetch nothing, only report what is missing")
    parser.set_defaults(act=lambda arguments: fetch(name, check=arguments.check))


def add_test_options(parser: ArgumentParser) -> None:
    """Add the options of `start` for tests."""
    parser.add_argument("--quick", action="store_true", help="faster start, slower operation: for tests")
    parser.add_argument("--until-exit", type=int, metavar="PID", help="kill it when this process ends")


def add_verb(add: Callable[..., ArgumentParser], verb: str, act: Callable[[Path], object], help_text: str) -> None:
    """Add a verb whose only argument is the folder."""
    parser = add(verb, help=help_text)
    parser.add_argument("dir", type=Path, metavar="DIR")
    parser.set_defaults(act=lambda arguments: act(arguments.dir))


def add_status(add: Callable[..., ArgumentParser], status: Callable[[Path], list[str]]) -> None:
    """Add the verb `status`."""
    parser = add("status", help=f"list running processes; exit status {NOT_RUNNING} if there are none")
    parser.add_argument("dir", type=Path, metavar="DIR")
    parser.set_defaults(act=lambda arguments: show(status(arguments.dir), arguments.dir))


def fetch(name: str, *, check: bool) -> None:
    """Check the requirements and fetch the jars."""
    java.check(name)
    if not check:
        java.fetch(name)


def start_hbase(arguments: Namespace) -> None:
    """Run `scripts/hbase start`."""
    started = hbase.start(
        arguments.dir,
        hbase.Options(
            port=arguments.port,
            thrift2_port=arguments.thrift2_port,
            zk_port=arguments.zk_port,
            heap=arguments.heap,
            thrift_heap=arguments.thrift_heap,
            quick=arguments.quick,
            settings=dict(arguments.set),
            owner=arguments.until_exit,
        ),
    )
    print(
        f"HBase answers: Thrift on {HOST}:{started.thrift_port}, Thrift 2 on {HOST}:{started.thrift2_port}, "
        f"ZooKeeper on {HOST}:{started.zk_port}"
    )


def start_opentsdb(arguments: Namespace) -> None:
    """Run `scripts/opentsdb start`."""
    options = opentsdb.Options(
        zk_port=arguments.zk_port,
        port=arguments.port,
        heap=arguments.heap,
        quick=arguments.quick,
        settings=dict(arguments.set),
        owner=arguments.until_exit,
    )
    print(f"OpenTSDB answers on {HOST}:{opentsdb.start(arguments.dir, options)}")


def start_cassandra(arguments: Namespace) -> None:
    """Run `scripts/cassandra start`."""
    options = cassandra.Options(
        port=arguments.port,
        storage_port=arguments.storage_port,
        heap=arguments.heap,
        password=arguments.password,
        keystore=arguments.keystore,
        durable=arguments.durable,
        quick=arguments.quick,
        owner=arguments.until_exit,
    )
    print(f"Cassandra answers on {HOST}:{cassandra.start(arguments.dir, options).port}")


def start_bigtable(arguments: Namespace) -> None:
    """Run `scripts/bigtable start`."""
    started = bigtable.start(arguments.dir, bigtable.Options(port=arguments.port, owner=arguments.until_exit))
    print(f"Bigtable's emulator answers on {HOST}:{started.port}")


def start_kairosdb(arguments: Namespace) -> None:
    """Run `scripts/kairosdb start`."""
    options = kairosdb.Options(
        cql_port=arguments.cql_port,
        keyspace=arguments.keyspace,
        port=arguments.port,
        telnet_port=arguments.telnet_port,
        heap=arguments.heap,
        quick=arguments.quick,
        settings=dict(arguments.set),
        owner=arguments.until_exit,
    )
    ports = kairosdb.start(arguments.dir, options)
    print(f"KairosDB answers on {HOST}:{ports.port}, telnet on {HOST}:{ports.telnet_port}")


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
    parsers = {
        "hbase": hbase_parser,
        "opentsdb": opentsdb_parser,
        "cassandra": cassandra_parser,
        "kairosdb": kairosdb_parser,
        "bigtable": bigtable_parser,
    }
    parser = parsers[arguments[0]]()
    options = parser.parse_args(arguments[1:])
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
