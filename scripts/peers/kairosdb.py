"""KairosDB 1.3.0 on a running Cassandra, the reference for the bytes and answers of its tables and API.

Its folder has the configuration, its queue, `log/` and `run/`. It makes its keyspace and tables where they are absent.
Its own metrics are off, so that the tables have only what is put.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from scripts.peers.cassandra import PORT as CASSANDRA_PORT
from scripts.peers.java import LOGBACK, fetch, find_java
from scripts.peers.ports import HOST, http_answers, listens, pick
from scripts.peers.process import PeerError, kill_all, launch, locked, pid_of, save, saved, shut_down

NAME, TITLE = "kairosdb", "KairosDB"
PORT, TELNET_PORT = 8080, 4243
START_S, STOP_S = 120, 60
OPENS = [
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in ("java.lang", "java.util", "java.nio", "sun.nio.ch")
    ),
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
]
QUICK = ["-XX:TieredStopAtLevel=1"]


@dataclass(frozen=True)
class Options:
    """Options of a start. A port None is the default port, 0 any free one; `settings` are keys below `kairosdb`."""

    cql_port: int = CASSANDRA_PORT
    keyspace: str = "kairosdb"
    port: int | None = None
    telnet_port: int | None = None
    heap: str = "512m"
    quick: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    owner: int | None = None  # stop when this process ends


class Ports(NamedTuple):
    """Where it answers."""

    port: int
    telnet_port: int


def start(home: Path, options: Options) -> Ports:
    """Start it unless it runs. Return its ports once it answers requests. Raise PeerError."""
    with locked(home / "run" / "lock"):
        if pid_of(home, NAME):
            return read(home)
        java, jars = find_java(), fetch(NAME)
        if not listens(options.cql_port):
            raise PeerError(f"nothing listens on {HOST}:{options.cql_port}, where Cassandra should: start it first")
        ports = Ports(
            pick(PORT if options.port is None else options.port),
            pick(TELNET_PORT if options.telnet_port is None else options.telnet_port),
        )
        _configure(home, ports, options)
        flags = [*OPENS, "-Xms128m", f"-Xmx{options.heap}", "-XX:+UseSerialGC", "-Duser.timezone=UTC"]
        flags += [f"-Djava.io.tmpdir={home / 'tmp'}", "-Djava.net.preferIPv4Stack=true", "-XX:+ExitOnOutOfMemoryError"]
        flags += [f"-Dlogback.configurationFile={home / 'conf' / 'logback.xml'}", *(QUICK if options.quick else [])]
        program = ["org.kairosdb.core.Main", "-c", "run", "-p", str(home / "settings.conf")]
        command: list[str | Path] = [java, *flags, "-cp", f"{home / 'conf'}:{jars}/*", *program]
        launch(home, NAME, command, lambda: _answers(ports), within_s=START_S, owner=options.owner)
        return ports


def stop(home: Path) -> None:
    """Stop it cleanly: it writes its queue."""
    shut_down(home, NAME, TITLE, within_s=STOP_S)


def kill(home: Path) -> None:
    """Kill it."""
    kill_all(home)


def status(home: Path) -> list[str]:
    """Return a line if it runs."""
    pid = pid_of(home, NAME)
    return [f"{NAME} runs as process {pid} on {HOST}:{read(home).port}"] if pid else []


def read(home: Path) -> Ports:
    """Return the ports of the KairosDB in `home`. Raise PeerError if none was started there."""
    return Ports(**saved(home, NAME, TITLE, Ports._fields))


def _answers(ports: Ports) -> bool:
    return listens(ports.telnet_port) and http_answers(ports.port, "/api/v1/version")


def _configure(home: Path, ports: Ports, options: Options) -> None:
    for folder in ("run", "tmp", "conf", "queue", "cache", "webroot"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    settings = {
        "service.datastore": '"org.kairosdb.datastore.cassandra.CassandraModule"',
        "service.reporter": '"<disabled>"',
        "jetty.address": f'"{HOST}"',
        "jetty.port": str(ports.port),
        "jetty.static_web_root": f'"{home / "webroot"}"',
        "telnetserver.address": f'"{HOST}"',
        "telnetserver.port": str(ports.telnet_port),
        "datastore.cassandra.write_cluster.cql_host_list": f'["{HOST}:{options.cql_port}"]',
        "datastore.cassandra.write_cluster.keyspace": f'"{options.keyspace}"',
        "queue_processor.queue_path": f'"{home / "queue"}"',
        "query_cache.cache_dir": f'"{home / "cache"}"',
        "hostname": '"localhost"',
        **options.settings,
    }
    (home / "settings.conf").write_text("".join(f"kairosdb.{key}: {value}\n" for key, value in settings.items()))
    (home / "conf" / "logback.xml").write_text(LOGBACK)
    save(home, NAME, ports._asdict())
