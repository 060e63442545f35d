"""Sockets that outlive the daemon: a restart under load refuses no connection and loses no acknowledged line."""

import errno
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.peers.ports import pick
from tests.e2e.command import HOST, PATIENCE_S, ROOT, Served, Tsd, on_hbase, until
from tests.e2e.inherited_sockets import bound_port, inheriting_daemon
from tests.e2e.notify_socket import NotifySocket
from tests.peers.hbase import RunningHbase

pytestmark = pytest.mark.slow
T = 1356998400
LINES = 20  # per connection
CLIENTS = 4
LIVES = 2
QUICK = ("--set", "tsd.journal.sync_interval=1")
ENOUGH = 20  # answered connections of each client, per daemon


class Client:
    """Repeatedly connects, sends lines and `sync`, and disconnects. Sends unacknowledged lines again over the next
    connection, as an agent does."""

    def __init__(self, number: int, address: tuple[str, int], *, retries: int = 0) -> None:
        """`retries`: refused connections after which it tries again."""
        self.refused: list[OSError] = []
        self.confirmed = 0  # number of connections; each has its own lines
        self.cut = 0  # connections closed before the reply
        self._number = number
        self._address = address
        self._retries = retries
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def lines(self) -> list[str]:
        """Return the acknowledged lines."""
        return [f"load.{self._number} {T + n} {n} host=web01" for n in range(self.confirmed * LINES)]

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                connection = socket.create_connection(self._address, timeout=PATIENCE_S)
            except OSError as error:
                self.refused.append(error)
                if len(self.refused) > self._retries:
                    return
                continue
            with connection:
                if self._send(connection):
                    self.confirmed += 1
                else:
                    self.cut += 1

    def _send(self, connection: socket.socket) -> bool:
        numbers = range(self.confirmed * LINES, (self.confirmed + 1) * LINES)
        text = b"".join(b"put load.%d %d %d host=web01\n" % (self._number, T + n, n) for n in numbers)
        answer = b""
        try:
            connection.sendall(text + b"sync\n")
            while not answer.endswith(b"\n"):
                part = connection.recv(4096)
                if not part:
                    return False
                answer += part
        except ConnectionError:  # the daemon exited with unacknowledged lines
            return False
        assert answer == b"synced %d\n" % LINES
        return True


def test_restart_under_load_loses_nothing(tmp_path: Path, notify_socket: NotifySocket) -> None:
    folder = tmp_path / "state"
    with bound_port() as held:
        clients = [Client(number, held.getsockname()) for number in range(CLIENTS)]
        try:
            for _ in range(LIVES):
                before = [client.confirmed for client in clients]
                with inheriting_daemon(folder, [held], notify_socket, *QUICK) as daemon:
                    assert daemon.await_ready() == held.getsockname()[1]
                    for client, count in zip(clients, before, strict=True):
                        until(lambda client=client, count=count: client.confirmed >= count + ENOUGH, "more")  # type: ignore[misc]
                    status, output = daemon.end()
                    assert status == 0, output
                    assert re.search(r"sockets\.inherited +addresses=127\.0\.0\.1:\d+\n", output), output
            with inheriting_daemon(folder, [held], notify_socket, *QUICK) as daemon:  # serves all waiting clients
                daemon.await_ready()
                for client in clients:
                    client.end()
                assert daemon.end()[0] == 0
        finally:
            for client in clients:
                client.end()
    assert [client.refused for client in clients] == [[] for _ in clients]
    found = Tsd(folder).lines(*(f"load.{number}" for number in range(CLIENTS)))
    for client in clients:
        assert set(client.lines()) <= set(found)


def test_connection_during_restart_served_by_next_daemon(tmp_path: Path, notify_socket: NotifySocket) -> None:
    with bound_port() as held:
        with inheriting_daemon(tmp_path / "state", [held], notify_socket) as daemon:
            daemon.await_ready()
            assert daemon.end()[0] == 0
        with socket.create_connection(held.getsockname(), timeout=PATIENCE_S) as early:
            early.sendall(b"put sys.cpu %d 1 host=web01\nsync\n" % T)
            with inheriting_daemon(tmp_path / "state", [held], notify_socket) as daemon:
                assert early.recv(100) == b"synced 1\n"
                assert daemon.end()[0] == 0


def test_all_inherited_sockets_are_served(tmp_path: Path, notify_socket: NotifySocket) -> None:
    with (
        bound_port() as one,
        bound_port() as other,
        inheriting_daemon(tmp_path / "state", [one, other], notify_socket) as daemon,
    ):
        daemon.await_ready()
        for held in (one, other):
            with socket.create_connection(held.getsockname(), timeout=PATIENCE_S) as connection:
                connection.sendall(b"sync\n")
                assert connection.recv(100) == b"synced 0\n"


def test_inherited_unix_socket_is_refused(tmp_path: Path, notify_socket: NotifySocket) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        inheriting_daemon(tmp_path / "state", [datagrams], notify_socket) as daemon,
    ):
        status, output = daemon.wait()
    assert status == 1
    assert output.splitlines()[-1] == (
        "tsd: inherited descriptor 3 (tsd) is not a listening TCP socket: wanted ListenStream=PORT and Accept=no"
    )


def test_socket_activate_passes_the_served_socket(tmp_path: Path, program: Callable[[str], Path]) -> None:
    port = pick(0)
    command = [str(program("systemd-socket-activate")), "-l", f"{HOST}:{port}", "--fdname=tsd"]
    words = [sys.executable, "-m", "tsd", "serve", "--data", str(tmp_path / "state"), "--port", "1"]
    with subprocess.Popen([*command, *words], stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stderr
        assert process.stderr.readline().startswith(f"Listening on {HOST}:{port} as 3.".encode())
        with socket.create_connection((HOST, port), timeout=PATIENCE_S) as first:
            first.sendall(b"put sys.cpu %d 1 host=web01\nsync\n" % T)
            assert first.recv(100) == b"synced 1\n"
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
    assert process.returncode == 0
    assert Tsd(tmp_path / "state").lines("sys.cpu") == [f"sys.cpu {T} 1 host=web01"]


def test_daemons_share_a_port_if_configured(tmp_path: Path) -> None:
    shared = {"tsd.network.reuse_port": "true"}
    one, other = Tsd(tmp_path / "one", shared), Tsd(tmp_path / "other", shared)
    with one.serve() as first, other.serve("--port", str(first.port)) as second:
        for daemon in (first, second):
            until(lambda daemon=daemon: reached(first.port, daemon.pid), "an answer of each")  # type: ignore[misc]
        third = Tsd(tmp_path / "third").run("serve", "--port", str(first.port))
        assert f"127.0.0.1:{first.port}: {os.strerror(errno.EADDRINUSE)}" in third.err


def test_kill_of_daemon_on_shared_port_loses_nothing(hbase: RunningHbase, tmp_path: Path) -> None:
    """Both write into the same rows. Lines in one daemon's journal are stored once it runs again."""
    shared = on_hbase(hbase, hbase.new_tables(), {"tsd.network.reuse_port": "true", "tsd.journal.sync_interval": "1"})
    one = Tsd(tmp_path / "one", shared | {"tsd.storage.flush_interval": "3600000"})
    other = Tsd(tmp_path / "other", shared)
    with one.serve() as first, other.serve("--port", str(first.port)) as second:
        # The kernel may refuse a connection that is being made at the moment of the kill.
        clients = [Client(number, (HOST, first.port), retries=1) for number in range(CLIENTS)]
        try:
            until(lambda: min(received(first), received(second)) > ENOUGH * LINES, "lines to each")
            first.kill()
            before = [client.confirmed for client in clients]
            for client, count in zip(clients, before, strict=True):
                until(lambda client=client, count=count: client.confirmed >= count + ENOUGH, "more")  # type: ignore[misc]
        finally:
            for client in clients:
                client.end()
        assert [client.refused for client in clients if len(client.refused) > 1] == []
        with one.serve("--port", str(second.port)) as again:
            until(lambda: bool(again.events("journal.replayed")), "a replay")
            second.flush()
            found = one.lines(*(f"load.{number}" for number in range(CLIENTS)))
    for client in clients:
        assert set(client.lines()) <= set(found)


def received(daemon: Served) -> int:
    """Return the number of lines received by one of several daemons on a port."""
    stats = daemon.request("stats")
    assert isinstance(stats, bytes)
    found = re.search(rb"^tsd\.ledger\.received \d+ (\d+)", stats, re.MULTILINE)
    assert found
    return int(found[1])


def reached(port: int, pid: int) -> bool:
    """Whether a new connection reaches that process."""
    with socket.create_connection((HOST, port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"sync\n")
        assert connection.recv(100) == b"synced 0\n"
        own = connection.getsockname()[1]
        inodes = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        for line in itertools.islice(Path("/proc/net/tcp").read_text().splitlines(), 1, None):
            words = line.split()
            if words[1].endswith(f":{port:04X}") and words[2].endswith(f":{own:04X}"):
                return f"socket:[{words[9]}]" in inodes
    return False
