"""OpenTSDB 2.4.1 on a running HBase, the reference for tsd's bytes and answers.

Its folder has the configuration, `log/`, `run/`, and the two folders that it requires. Its tables must exist.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scripts.peers.java import LOGBACK, fetch, find_java
from scripts.peers.ports import HOST, http_answers, listens, pick
from scripts.peers.process import PeerError, kill_all, launch, locked, log_of, pid_of, save, saved, shut_down, tail

NAME, TITLE = "opentsdb", "OpenTSDB"
PORT = 4242
STOP_S = 60
START_S = 90
FATAL = 'Exception in thread "main"'
OPENS = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "sun.nio.ch")]
QUICK = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


@dataclass(frozen=True)
class Options:
    """Options of a start. Port None is the default port, 0 any free one; `settings` are keys of opentsdb.conf."""

    zk_port: int
    port: int | None = None
    heap: str = "512m"
    quick: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    owner: int | None = None  # stop when this process ends


def start(home: Path, options: Options) -> int:
    """Start it unless it runs. Return its port once it answers requests. Raise PeerError."""
    with locked(home / "run" / "lock"):
        if pid_of(home, NAME):
            return _same(read(home), options)
        java, jars = find_java(), fetch(NAME)
        if not listens(options.zk_port):  # OpenTSDB would retry forever
            raise PeerError(f"nothing listens on {HOST}:{options.zk_port}, where ZooKeeper should: start HBase first")
        port = pick(PORT if options.port is None else options.port)
        _configure(home, port, options)
        flags = [*OPENS, f"-Xmx{options.heap}", f"-Djava.io.tmpdir={home / 'tmp'}", "-XX:+ExitOnOutOfMemoryError"]
        program = ["net.opentsdb.tools.TSDMain", f"--config={home / 'opentsdb.conf'}"]
        command: list[str | Path] = [
            java,
            *flags,
            *(QUICK if options.quick else []),
            "-cp",
            f"{home}:{jars}/*",
            *program,
        ]
        launch(home, NAME, command, lambda: _answers(home, port), within_s=START_S, owner=options.owner)
        return port


def stop(home: Path, within_s: int = STOP_S) -> None:
    """Stop it cleanly: it writes its buffers, and compacts rows if that is enabled. Kill it after `within_s`."""
    shut_down(home, NAME, TITLE, within_s=within_s)


def kill(home: Path) -> None:
    """Kill it."""
    kill_all(home)


def status(home: Path) -> list[str]:
    """Return a line if it runs."""
    pid = pid_of(home, NAME)
    return [f"{NAME} runs as process {pid} on {HOST}:{read(home)}"] if pid else []


def read(home: Path) -> int:
    """Return the port of the OpenTSDB in `home`. Raise PeerError if none was started there."""
    return saved(home, NAME, TITLE, ["port"])["port"]


def _answers(home: Path, port: int) -> bool:
    if FATAL in log_of(home, NAME).read_text(errors="replace"):  # the process stays, with idle threads
        raise PeerError(f"{NAME} failed to start\n{tail(home, NAME)}")
    return http_answers(port, "/api/version")


def _same(port: int, options: Options) -> int:
    if options.port and options.port != port:
        raise PeerError(f"it runs already, with --port {port}: stop it first")
    return port


def _configure(home: Path, port: int, options: Options) -> None:
    for folder in ("run", "tmp", "static", "cache"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    settings = {
        "tsd.network.bind": HOST,
        "tsd.network.port": str(port),
        "tsd.http.staticroot": str(home / "static"),
        "tsd.http.cachedir": str(home / "cache"),
        "tsd.storage.hbase.zk_quorum": f"{HOST}:{options.zk_port}",
        "tsd.core.auto_create_metrics": "true",
        **options.settings,
    }
    (home / "opentsdb.conf").write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    (home / "logback.xml").write_text(LOGBACK)
    save(home, NAME, {"port": port})
