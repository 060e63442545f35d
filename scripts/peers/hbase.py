"""HBase 2.6.1 in one JVM (master, region server, ZooKeeper), and its gateways of Thrift 1 and Thrift 2 in two others.

Its folder has `conf/`, `data/` and `zookeeper/` (persistent), `log/`, `run/` and `tmp/`. The gateways start at the
same time as HBase and wait for it, which saves two of six seconds.
"""

import contextlib
import json
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from scripts.peers.java import fetch, find_java
from scripts.peers.ports import HOST, listens, pick, thrift_answers
from scripts.peers.process import (
    PeerError,
    await_ready,
    died,
    end,
    kill_all,
    killed_on_error,
    locked,
    pid_of,
    send,
    spawn,
    watch,
)

HBASE, THRIFT, THRIFT2 = "hbase", "thrift", "thrift2"
MAIN = {
    HBASE: "org.apache.hadoop.hbase.master.HMaster",
    THRIFT: "org.apache.hadoop.hbase.thrift.ThriftServer",
    THRIFT2: "org.apache.hadoop.hbase.thrift2.ThriftServer",
}
GATEWAYS = THRIFT, THRIFT2
THRIFT_PORT, THRIFT2_PORT, ZK_PORT = 9090, 9091, 2181
STOP_S = 60  # a stop flushes memory to files
START_S = 180

# Packages that Hadoop and Netty access, and that Java 17 closes.
OPENS = [
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang", "java.lang.reflect", "java.nio", "java.util", "java.util.concurrent",
            "jdk.internal.ref", "sun.nio.ch",
        )
    ),
    "--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
]  # fmt: skip
QUICK = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]  # starts in two thirds of the time, without optimised code

LOG4J = """\
log4j.rootLogger=WARN,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %-5p [%t] %c{2}: %m%n
"""
# Irrelevant warnings of every start: without them, everything in a log is relevant.
USUAL = [
    "hadoop.hbase.ZNodeClearer",
    "hadoop.hbase.client.ConnectionImplementation",  # the cluster's id, for security tokens, does not exist yet
    "hadoop.hbase.client.ZKConnectionRegistry",
    "hadoop.hbase.master.assignment.AssignmentManager",
    "hadoop.hbase.master.region.MasterRegion",
    "hadoop.hbase.thrift.ThriftHBaseServiceHandler",  # every exception in an answer, including the readiness probe
    "hadoop.metrics2.impl.MetricsConfig",
    "hadoop.util.NativeCodeLoader",
    "zookeeper.server.ServerCnxnFactory",
]


@dataclass(frozen=True)
class Options:
    """Options of a start. Port None is the default port, 0 any free one; heaps are in the format of -Xmx."""

    port: int | None = None
    thrift2_port: int | None = None
    zk_port: int | None = None
    heap: str = "1g"
    thrift_heap: str = "256m"
    quick: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)  # of hbase-site.xml
    owner: int | None = None  # stop when this process ends


class Started(NamedTuple):
    """Parameters of the last start, saved in `run/hbase.json` for later commands and restarts of the gateway."""

    thrift_port: int
    thrift2_port: int
    zk_port: int
    heap: str
    thrift_heap: str
    quick: bool


def start(home: Path, options: Options) -> Started:
    """Start missing processes, and return once tables can be created through the gateway. Raise PeerError."""
    with locked(home / "run" / "lock"):
        if pid_of(home, HBASE):
            started = _same(read(home), options)
            _start_thrift(home, started)
            return started
        kill_all(home)  # a gateway without its HBase
        fetch(HBASE)
        started = Started(
            pick(THRIFT_PORT if options.port is None else options.port),
            pick(THRIFT2_PORT if options.thrift2_port is None else options.thrift2_port),
            pick(ZK_PORT if options.zk_port is None else options.zk_port),
            options.heap,
            options.thrift_heap,
            options.quick,
        )
        _configure(home, started, options.settings)
        with killed_on_error(home):
            if options.owner:
                watch(home, options.owner)
            _launch(home, HBASE, started)
            for gateway in GATEWAYS:
                _launch(home, gateway, started)
            _await_thrift(home, started)
        return started


def stop(home: Path) -> None:
    """Stop everything cleanly: nothing is lost, nor replayed at the next start. Takes 6 s."""
    if not (home / "run").exists():
        return
    with locked(home / "run" / "lock"):
        thrift_stop(home)
        orderly = _shut_down(home) or end(home, HBASE, orderly_s=STOP_S)
        kill_all(home)
    if not orderly:
        raise PeerError(f"HBase was killed: it did not stop within {STOP_S} s. Its next start replays what it logged")


def kill(home: Path) -> None:
    """Kill everything, without waiting: a start in progress fails."""
    kill_all(home)


def thrift_start(home: Path) -> Started:
    """Make the gateways of a running HBase run and answer, also if they were paused."""
    with locked(home / "run" / "lock"):
        if not pid_of(home, HBASE):
            raise PeerError(f"HBase does not run in {home}")
        started = read(home)
        _start_thrift(home, started)
        return started


def thrift_stop(home: Path) -> None:
    """Stop the gateways cleanly."""
    for gateway in GATEWAYS:
        end(home, gateway, orderly_s=10)


def thrift_kill(home: Path) -> None:
    """Kill the gateways."""
    for gateway in GATEWAYS:
        end(home, gateway)


def thrift_pause(home: Path) -> None:
    """Pause the gateways: their connections stay open without answers."""
    for gateway in GATEWAYS:
        send(home, gateway, signal.SIGSTOP)


def thrift_resume(home: Path) -> None:
    """Resume paused gateways."""
    for gateway in GATEWAYS:
        send(home, gateway, signal.SIGCONT)


def status(home: Path) -> list[str]:
    """Return a line for each running process."""
    lines = []
    for name in MAIN:
        if pid := pid_of(home, name):
            started = read(home)
            shown = {
                HBASE: f"ZooKeeper on {HOST}:{started.zk_port}",
                THRIFT: f"Thrift on {HOST}:{started.thrift_port}",
                THRIFT2: f"Thrift 2 on {HOST}:{started.thrift2_port}",
            }[name]
            lines.append(f"{name} runs as process {pid}, {shown}")
    return lines


def read(home: Path) -> Started:
    """Return the parameters of the last start of the HBase in `home`. Raise PeerError if there was none."""
    try:
        return Started(**json.loads((home / "run" / "hbase.json").read_text()))
    except (OSError, ValueError, TypeError) as exc:
        raise PeerError(f"no HBase was started in {home}") from exc


def _same(started: Started, options: Options) -> Started:
    for what, has, wanted in (
        ("port", started.thrift_port, options.port),
        ("thrift2-port", started.thrift2_port, options.thrift2_port),
        ("zk-port", started.zk_port, options.zk_port),
    ):
        if wanted and wanted != has:
            raise PeerError(f"it runs already, with --{what} {has}: stop it first")
    return started


def _start_thrift(home: Path, started: Started) -> None:
    for gateway in GATEWAYS:
        if pid_of(home, gateway):
            send(home, gateway, signal.SIGCONT)  # it may be paused
        else:
            pick(_port(gateway, started))
            _launch(home, gateway, started)
    try:
        _await_thrift(home, started)
    except BaseException:
        thrift_kill(home)
        raise


def _port(gateway: str, started: Started) -> int:
    return started.thrift_port if gateway == THRIFT else started.thrift2_port


def _await_thrift(home: Path, started: Started) -> None:
    # 3 s per call: a gateway whose HBase has just died would wait much longer.
    # The one of Thrift 2 connects to HBase before it listens.
    await_ready(
        home,
        list(MAIN),
        lambda: thrift_answers(started.thrift_port) and listens(started.thrift2_port),
        within_s=START_S,
    )


def _shut_down(home: Path) -> bool:
    """Ask the master to shut the cluster down, and wait. Return whether it did.

    SIGTERM stops master, region server and ZooKeeper in any order. If ZooKeeper stops first, the others retry for 20 s
    to unregister, and the next start waits as long for servers that seem to be alive.
    """
    pid = pid_of(home, HBASE)
    if pid is None:
        return True
    command = [*_java(home, "128m", quick=True), MAIN[HBASE], "stop", "--shutDownCluster"]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(command, check=False, capture_output=True, timeout=STOP_S)
        return done.returncode == 0 and died([pid], within_s=STOP_S)
    return False


def _launch(home: Path, name: str, started: Started) -> None:
    heap = started.heap if name == HBASE else started.thrift_heap
    arguments = ["start"] if name == HBASE else ["start", "-p", str(_port(name, started)), "--bind", HOST]
    spawn(home, name, [*_java(home, heap, quick=started.quick), MAIN[name], *arguments])


def _java(home: Path, heap: str, *, quick: bool) -> list[str | Path]:
    flags = [f"-Xmx{heap}", f"-Djava.io.tmpdir={home / 'tmp'}", "-Djava.net.preferIPv4Stack=true"]
    faster = QUICK if quick else []
    classes = ["-cp", f"{home / 'conf'}:{fetch(HBASE)}/*"]
    return [find_java(), *OPENS, *flags, *faster, "-XX:+ExitOnOutOfMemoryError", *classes]


def _configure(home: Path, started: Started, settings: Mapping[str, str]) -> None:
    for folder in ("conf", "run", "tmp"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    properties = {**_properties(home, started.zk_port), **settings}
    rows = (f"<property><name>{escape(k)}</name><value>{escape(v)}</value></property>" for k, v in properties.items())
    site = "\n".join(["<configuration>", *rows, "</configuration>", ""])
    (home / "conf" / "hbase-site.xml").write_text(site)
    (home / "conf" / "log4j.properties").write_text(
        LOG4J + "".join(f"log4j.logger.org.apache.{name}=ERROR\n" for name in USUAL)
    )
    (home / "run" / "hbase.json").write_text(json.dumps(started._asdict()) + "\n")


def _properties(home: Path, zk_port: int) -> dict[str, str]:
    properties = {
        "hbase.rootdir": f"file://{home / 'data'}",
        "hbase.tmp.dir": str(home / "tmp"),
        "hbase.zookeeper.property.dataDir": str(home / "zookeeper"),
        "hbase.zookeeper.quorum": HOST,
        "hbase.zookeeper.property.clientPort": str(zk_port),
        "hbase.unsafe.stream.capability.enforce": "false",  # a local file system has no hflush
        # There is only one region server: do not wait for more.
        "hbase.master.wait.on.regionservers.mintostart": "1",
        "hbase.master.wait.on.regionservers.maxtostart": "1",
        "hbase.regionserver.msginterval": "500",  # ms until its first report, on which the start depends; default 3 s
        # Time (ms) to collect regions before opening them together: useless with a few tables.
        "hbase.assignment.dispatch.wait.msec": "10",
        "hbase.procedure.remote.dispatcher.delay.msec": "10",
        "hbase.thrift.info.port": "-1",
    }
    for role in ("master", "regionserver"):
        properties[f"hbase.{role}.hostname"] = "localhost"
        properties[f"hbase.{role}.ipc.address"] = HOST
        properties[f"hbase.{role}.port"] = "0"
        properties[f"hbase.{role}.info.port"] = "-1"
    return properties
