"""Processes that outlive the command that started them, each recorded in a file of its folder.

`run/NAME.pid` has the process id and the start time of the process (clock ticks after boot), so that a reused id is
detected. Each process leads its own session: it does not receive the command's Ctrl-C, and a kill reaches all its
children.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

TAIL_LINES = 25


class PeerError(Exception):
    """An error, with a message for the user of the command."""


def spawn(home: Path, name: str, command: Sequence[str | Path]) -> int:
    """Start `command` under `name`, with its output in `log/NAME.log` (the previous one is kept as .1). Return its
    pid."""
    log = log_of(home, name)
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    started = _started(process.pid)
    file = _pid_file(home, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{process.pid} {started}\n")
    process.returncode = 0  # this object is not used to wait for it: prevents Python's warning
    return process.pid


def pid_of(home: Path, name: str) -> int | None:
    """Return the process id of `name` while it runs, else None."""
    try:
        pid, started = map(int, _pid_file(home, name).read_text().split())
    except (OSError, ValueError):
        return None
    return pid if _started(pid) == started else None


def end(home: Path, name: str, *, orderly_s: float = 0) -> bool:
    """Stop `name` and return once it has ended: True if it exited within `orderly_s` of SIGTERM, or did not run. 0
    kills it at once."""
    pid = pid_of(home, name)
    orderly = True
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            if orderly_s:
                os.killpg(pid, signal.SIGTERM)
                os.killpg(pid, signal.SIGCONT)  # a paused process receives no other signal
            orderly = died([pid], within_s=orderly_s)
            os.killpg(pid, signal.SIGKILL)
        died([pid], within_s=60)
    _pid_file(home, name).unlink(missing_ok=True)
    return orderly


def send(home: Path, name: str, signum: signal.Signals) -> None:
    """Send `name` a signal. Raise PeerError if it does not run."""
    pid = pid_of(home, name)
    if pid is None:
        raise PeerError(f"{name} does not run in {home}")
    os.killpg(pid, signum)


def died(pids: Sequence[int], *, within_s: float | None) -> bool:
    """Wait until one of the processes has ended, at most `within_s` (None: forever). Return whether one has."""
    with contextlib.ExitStack() as handles:
        poll = select.poll()
        for pid in pids:
            try:
                handle = os.pidfd_open(pid)
            except ProcessLookupError:
                return True
            handles.callback(os.close, handle)
            poll.register(handle, select.POLLIN)
        return bool(poll.poll(None if within_s is None else within_s * 1000))


def await_ready(home: Path, names: Sequence[str], ready: Callable[[], bool], *, within_s: float) -> None:
    """Return once `ready()`. Raise PeerError with the end of a log as soon as one of `names` has ended, or after
    `within_s`."""
    deadline = time.monotonic() + within_s
    while not ready():
        pids = {name: pid_of(home, name) for name in names}
        living = [pid for pid in pids.values() if pid is not None]
        if len(living) < len(names) or died(living, within_s=0.1):
            dead = [name for name in names if pid_of(home, name) is None]
            raise PeerError("\n".join([f"{' and '.join(dead)} ended while starting", *(tail(home, n) for n in dead)]))
        if time.monotonic() > deadline:
            raise PeerError("\n".join([f"no answer within {within_s:.0f} s", *(tail(home, name) for name in names)]))


def kill_all(home: Path, *, but: Sequence[str] = ()) -> None:
    """Kill all processes that were started in `home`."""
    for file in sorted((home / "run").glob("*.pid")):
        if file.stem not in but:
            end(home, file.stem)


def launch(
    home: Path,
    name: str,
    command: Sequence[str | Path],
    ready: Callable[[], bool],
    *,
    within_s: float,
    owner: int | None,
) -> None:
    """Start the one process of `home`, and return once `ready()`. It is killed when the process `owner` ends. Raises
    PeerError if it ends, or is not ready within `within_s`; it does not run then."""
    with killed_on_error(home):
        if owner:
            watch(home, owner)
        spawn(home, name, command)
        await_ready(home, [name], ready, within_s=within_s)


def shut_down(home: Path, name: str, title: str, *, within_s: float, loses: str = "") -> None:
    """Stop the one process of `home` cleanly, if it runs. Raise PeerError with `loses` if it had to be killed."""
    if not (home / "run").exists():
        return
    with locked(home / "run" / "lock"):
        orderly = end(home, name, orderly_s=within_s)
        kill_all(home)
    if not orderly:
        raise PeerError(f"{title} was killed: it did not stop within {within_s:.0f} s{loses}")


def saved(home: Path, name: str, title: str, ports: Sequence[str]) -> dict[str, int]:
    """Return these ports, which `save` wrote. Raise PeerError if none was started there."""
    try:
        found = json.loads((home / "run" / f"{name}.json").read_text())
        return {port: int(found[port]) for port in ports}
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise PeerError(f"no {title} was started in {home}") from exc


def save(home: Path, name: str, ports: Mapping[str, int]) -> None:
    """Write the ports of a start to `run/NAME.json`."""
    (home / "run" / f"{name}.json").write_text(json.dumps(ports) + "\n")


@contextlib.contextmanager
def killed_on_error(home: Path) -> Iterator[None]:
    """Kill all processes of `home` if the block fails or is interrupted: no half-started peer stays."""
    try:
        yield
    except BaseException:
        kill_all(home)
        raise


def watch(home: Path, owner: int) -> None:
    """Kill everything in `home` when the process `owner` ends, however it ends."""
    end(home, "watch")
    spawn(home, "watch", [sys.executable, "-m", "scripts.peers.watch", home, str(owner)])


def tail(home: Path, name: str) -> str:
    """Return the last lines of a log, indented, under its path."""
    log = log_of(home, name)
    try:
        lines = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        lines = []
    return "\n".join([f"{log}:", *(f"  {line}" for line in lines or ["(empty)"])])


def log_of(home: Path, name: str) -> Path:
    """Return the log file of `name`."""
    return home / "log" / f"{name}.log"


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Lock `file` against other processes, and wait if necessary."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pid_file(home: Path, name: str) -> Path:
    return home / "run" / f"{name}.pid"


def _started(pid: int) -> int | None:
    """Return the start time of a process in clock ticks after boot; None if it has ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name, in brackets, may contain anything
    return None if fields[0] in "ZX" else int(fields[19])
