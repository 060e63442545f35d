"""Listening sockets, inherited or opened."""

import errno
import os
import re
import socket
import tempfile
from collections.abc import Iterator

import pytest

from tsd.errors import TsdError
from tsd.server.sockets import ListenAddress, inherited, listeners

LOCAL = ListenAddress("127.0.0.1", 0, 16, reuse_port=False)


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one


def handed(pid: int | None = None, names: str = "tsd") -> dict[str, str]:
    """Return the environment that systemd sets, with other variables."""
    pid = os.getpid() if pid is None else pid
    return {"LISTEN_PID": str(pid), "LISTEN_FDS": "1", "LISTEN_FDNAMES": names, "HOME": "/"}


def test_inherited_socket_is_used_and_not_inheritable(held: socket.socket) -> None:
    fd = os.dup(held.fileno())
    os.set_inheritable(fd, True)
    environ = handed()
    [taken] = inherited(environ, fd)
    with taken:
        assert taken.getsockname() == held.getsockname()
        assert not os.get_inheritable(fd)
        assert not taken.getblocking()
    assert environ == {"HOME": "/"}


@pytest.mark.parametrize("environ", [{}, handed(pid=1), handed() | {"LISTEN_FDS": "many"}, {"LISTEN_FDS": "1"}])
def test_sockets_for_another_process_are_ignored(environ: dict[str, str], held: socket.socket) -> None:
    assert inherited(environ, held.fileno()) == []
    assert "LISTEN_FDS" not in environ


@pytest.mark.parametrize("kind", ["a file", "datagrams", "a path", "one that does not listen"])
def test_unusable_inherited_socket_is_refused(kind: str) -> None:
    if kind == "a file":
        fd = os.open(os.devnull, os.O_RDONLY)
    elif kind == "datagrams":
        fd = socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()
    elif kind == "a path":
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as one:
            one.bind(f"{folder}/s")
            one.listen()
            fd = os.dup(one.fileno())
    else:
        fd = socket.socket().detach()
    with pytest.raises(TsdError, match=rf"\b{fd}\b.*\bunknown\b"):
        inherited(handed(names=""), fd)
    if kind == "a file":
        os.close(fd)


async def test_port_is_opened_without_inherited_sockets() -> None:
    [one] = await listeners(LOCAL, {})
    assert one.socket.getsockname()[0] == "127.0.0.1"
    await one.aclose()


async def test_address_in_use_is_an_error(held: socket.socket) -> None:
    port = held.getsockname()[1]
    with pytest.raises(TsdError, match=rf"127\.0\.0\.1:{port}\b.*{os.strerror(errno.EADDRINUSE)}"):
        await listeners(LOCAL._replace(port=port), {})
    for bind in ("no.such.host.invalid", "no..invalid"):
        with pytest.raises(TsdError, match=f"{re.escape(bind)}:0"):
            await listeners(LOCAL._replace(bind=bind), {})


async def test_address_that_the_kernel_does_not_support_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an IPv6 address without IPv6."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))

    monkeypatch.setattr("trio.socket.socket", refuse)
    with pytest.raises(TsdError, match=os.strerror(errno.EAFNOSUPPORT)):
        await listeners(LOCAL, {})


async def test_port_is_shared_with_reuse_port() -> None:
    shared = LOCAL._replace(reuse_port=True)
    [one] = await listeners(shared, {})
    shared = shared._replace(port=one.socket.getsockname()[1])
    [other] = await listeners(shared, {})
    with pytest.raises(TsdError, match=os.strerror(errno.EADDRINUSE)):
        await listeners(shared._replace(reuse_port=False), {})
    await one.aclose()
    await other.aclose()
