"""Sockets that outlive the daemon: a restart under load refuses nobody, and loses nothing that was acknowledged."""

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

from tests.e2e.command import HOST, PATIENCE_S, ROOT, Served, Tsd, on_hbase, until
from tests.e2e.handed import held_port, life
from tests.e2e.notices import Notices
from tests.peers.hbase import RunningHbase

pytestmark = pytest.mark.slow
T = 1356998400
LINES = 20  # of one connection
CLIENTS = 4
LIVES = 2
QUICK = ("--set", "tsd.journal.sync_interval=1")
ENOUGH = 20  # connections of each client that were answered, in each life


class Client:
    """Connects, sends some lines, asks whether they are safe, hangs up; over and over. What is not answered it sends
    again over its next connection, as an agent does."""

    def __init__(self, number: int, address: tuple[str, int]) -> None:
        self.refused: list[OSError] = []
        self.confirmed = 0  # connections: each has lines of its own
        self.cut = 0  # connections that ended before the answer
        self._number = number
        self._address = address
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def lines(self) -> list[str]:
        """What is stored for sure."""
        return [f"load.{self._number} {T + n} {n} host=web01" for n in range(self.confirmed * LINES)]

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                connection = socket.create_connection(self._address, timeout=PATIENCE_S)
            except OSError as error:
                self.refused.append(error)
                return
            with connection:
                if self._ask(connection):
                    self.confirmed += 1
                else:
                    self.cut += 1

    def _ask(self, connection: socket.socket) -> bool:
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
        except ConnectionError:  # the daemon ended while it had our lines
            return False
        assert answer == b"synced %d\n" % LINES
        return True


def test_a_restart_under_load_refuses_nobody_and_loses_nothing(tmp_path: Path, notices: Notices) -> None:
    folder = tmp_path / "state"
    with held_port() as held:
        clients = [Client(number, held.getsockname()) for number in range(CLIENTS)]
        try:
            for _ in range(LIVES):
                before = [client.confirmed for client in clients]
                with life(folder, [held], notices, *QUICK) as daemon:
                    assert daemon.await_ready() == held.getsockname()[1]
                    for client, count in zip(clients, before, strict=True):
                        until(lambda client=client, count=count: client.confirmed >= count + ENOUGH, "more")  # type: ignore[misc]
                    status, said = daemon.end()
                    assert status == 0, said
                    assert re.search(r"sockets were handed over +addresses=127\.0\.0\.1:\d+\n", said), said
            with life(folder, [held], notices, *QUICK) as daemon:  # so that all who wait are answered
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


def test_who_connects_while_there_is_no_daemon_is_answered_by_the_next(tmp_path: Path, notices: Notices) -> None:
    with held_port() as held:
        with life(tmp_path / "state", [held], notices) as daemon:
            daemon.await_ready()
            assert daemon.end()[0] == 0
        with socket.create_connection(held.getsockname(), timeout=PATIENCE_S) as early:
            early.sendall(b"put sys.cpu %d 1 host=web01\nsync\n" % T)
            with life(tmp_path / "state", [held], notices) as daemon:
                assert early.recv(100) == b"synced 1\n"
                assert daemon.end()[0] == 0


def test_several_sockets_are_all_served(tmp_path: Path, notices: Notices) -> None:
    with held_port() as one, held_port() as other, life(tmp_path / "state", [one, other], notices) as daemon:
        daemon.await_ready()
        for held in (one, other):
            with socket.create_connection(held.getsockname(), timeout=PATIENCE_S) as connection:
                connection.sendall(b"sync\n")
                assert connection.recv(100) == b"synced 0\n"


def test_a_socket_that_is_none_of_a_port_is_said(tmp_path: Path, notices: Notices) -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        life(tmp_path / "state", [datagrams], notices) as daemon,
    ):
        status, said = daemon.wait()
    assert status == 1
    assert said.splitlines()[-1] == (
        "tsd: descriptor 3 (tsd) was handed over and is no TCP socket that listens: wanted ListenStream=PORT, "
        "and Accept=no"
    )


def test_systemds_own_tool_hands_over_what_is_served(tmp_path: Path, program: Callable[[str], Path]) -> None:
    with held_port() as free:
        port = free.getsockname()[1]
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


def test_daemons_share_a_port_where_that_is_set(tmp_path: Path) -> None:
    shared = {"tsd.network.reuse_port": "true"}
    one, other = Tsd(tmp_path / "one", shared), Tsd(tmp_path / "other", shared)
    with one.serve() as first, other.serve("--port", str(first.port)) as second:
        for daemon in (first, second):
            until(lambda daemon=daemon: reached(first.port, daemon.pid), "an answer of each")  # type: ignore[misc]
        third = Tsd(tmp_path / "third").run("serve", "--port", str(first.port))
        assert third.err == f"tsd: cannot listen on 127.0.0.1:{first.port}: Address already in use\n"


def test_of_daemons_on_hbase_that_share_a_port_one_is_killed_and_nothing_is_lost(
    hbase: RunningHbase, tmp_path: Path
) -> None:
    """Both write into the same rows. What only the journal of the one has is there once it runs again."""
    shared = on_hbase(hbase, hbase.new_tables(), {"tsd.network.reuse_port": "true", "tsd.journal.sync_interval": "1"})
    one = Tsd(tmp_path / "one", shared | {"tsd.storage.flush_interval": "3600000"})
    other = Tsd(tmp_path / "other", shared)
    with one.serve() as first, other.serve("--port", str(first.port)) as second:
        clients = [Client(number, (HOST, first.port)) for number in range(CLIENTS)]
        try:
            until(lambda: min(received(first), received(second)) > ENOUGH * LINES, "lines to each")
            first.kill()
            before = [client.confirmed for client in clients]
            for client, count in zip(clients, before, strict=True):
                until(lambda client=client, count=count: client.confirmed >= count + ENOUGH, "more")  # type: ignore[misc]
        finally:
            for client in clients:
                client.end()
        assert [client.refused for client in clients] == [[] for _ in clients]
        with one.serve("--port", str(second.port)) as again:
            assert again.events("journal replayed")
            second.flush()
            found = one.lines(*(f"load.{number}" for number in range(CLIENTS)))
    for client in clients:
        assert set(client.lines()) <= set(found)


def received(daemon: Served) -> int:
    """How many lines one of several on a port has received."""
    told = daemon.request("stats")
    assert isinstance(told, bytes)
    found = re.search(rb"^tsd\.ledger\.received \d+ (\d+)", told, re.MULTILINE)
    assert found
    return int(found[1])


def reached(port: int, pid: int) -> bool:
    """Whether a new connection leads to that process."""
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
