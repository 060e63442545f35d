"""Servers that are killed in a run of `tsd torture`."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest
import trio
import trio.testing

from tsd.cli.torture.command import restart_command
from tsd.cli.torture.options import BadFaults, parse_faults
from tsd.cli.torture.servers import NotRestarted, Servers

LISTENER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
while True:
    server.accept()
"""


@contextmanager
def listener() -> Iterator[tuple[tuple[str, int], "subprocess.Popen[str]"]]:
    """Yield the address of a process that accepts connections, and the process."""
    with subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield ("127.0.0.1", int(process.stdout.readline())), process
        finally:
            process.kill()


async def crash(servers: Servers, failed: list[NotRestarted]) -> None:
    """Kill servers that cannot be started again, and keep the error."""
    try:
        await servers.crash()
    except NotRestarted as exc:
        failed.append(exc)


async def test_failed_restart_shows_status_and_output() -> None:
    command = ["sh", "-c", "echo no memory; exit 7"]
    with listener() as (address, process):
        with pytest.raises(NotRestarted, match=r"exit status 7: no memory"):
            await Servers([address], command).crash()
        assert process.wait() != 0


async def test_missing_restart_command_is_named() -> None:
    with listener() as (address, _), pytest.raises(NotRestarted, match="no-such-program"):
        await Servers([address], ["no-such-program"]).crash()


async def test_rounds_share_a_kill() -> None:
    with listener() as (address, _):
        servers = Servers([address], ["false"], together=2)
        failed: list[NotRestarted] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash, servers, failed)
            nursery.start_soon(crash, servers, failed)
        assert len(failed) == 2  # a second kill would have found no server
        assert str(failed[0]) == str(failed[1])


async def test_servers_are_not_killed_while_needed() -> None:
    with listener() as (address, process):
        servers = Servers([address], ["false"])
        failed: list[NotRestarted] = []
        async with trio.open_nursery() as nursery, servers.needed():
            nursery.start_soon(crash, servers, failed)
            await trio.testing.wait_all_tasks_blocked()
            assert process.poll() is None
        assert process.wait() != 0
        assert failed


def test_restart_needs_the_fault() -> None:
    command = "systemctl start 'my server'"
    assert restart_command(command, {"crash": 1}) == shlex.split(command)
    with pytest.raises(click.UsageError, match="crash"):
        restart_command(command, {"pause": 1})
    with pytest.raises(click.UsageError, match="wanted a command"):
        restart_command("'open", {"crash": 1})


def test_emulator_is_not_killed() -> None:
    assert parse_faults("crash=3", 1, servers=True) == {"crash": 3}
    with pytest.raises(BadFaults):
        parse_faults("crash", 1, servers=True, bigtable=True)
