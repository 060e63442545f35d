"""The PROXY protocol: a balancer says with a connection's first bytes who is behind it (HAProxy's specification,
versions 1 and 2). It is wanted of balancers that are configured, and understood from nobody else.
"""

import re
import struct
from ipaddress import ip_address
from typing import NamedTuple

import trio

from tsd.access.networks import read_address
from tsd.errors import TsdError

PATIENCE_S = 5  # balancers say it at once
SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"  # of version 2
FIRST = b"PROXY "  # of version 1
MOST_FIRST, MOST_BYTES = 107, 2048  # of a header of version 1, and of 2 with all that may be attached
_FIXED = struct.Struct("!12sBBH")
_LINE = re.compile(rb"PROXY (?:(UNKNOWN)[^\r\n]*|TCP([46]) ([0-9A-Fa-f:.]+) ([0-9A-Fa-f:.]+) (\d{1,5}) (\d{1,5}))\r\n")
_LOCAL, _PROXY = 0x20, 0x21
_FAMILIES = {0x11: struct.Struct("!4s4sHH"), 0x21: struct.Struct("!16s16sHH")}  # over TCP: both ends
_UNSPECIFIED, _UNIX = 0x00, 0x31


class NoHeader(TsdError):
    """A balancer's connection does not begin as it must."""


class Announced(NamedTuple):
    """Who is behind a balancer."""

    address: str
    port: int


async def read_announced(sock: trio.socket.SocketType) -> Announced | None:
    """Who a connection is from, by its header, of which every byte and not one more is read; None where it is the
    balancer's own. Raises NoHeader, and OSError."""
    head = b""
    with trio.move_on_after(PATIENCE_S):
        while True:
            there = await sock.recv(MOST_BYTES, trio.socket.MSG_PEEK)
            if not there and not head:
                raise ConnectionResetError("a balancer looked whether there is somebody")
            if not there:
                raise NoHeader(f"the connection ended after {len(head)} bytes")
            head += await sock.recv(belonging(head, there))
            if is_whole(head):
                return read_header(head)
    raise NoHeader(f"only {len(head)} bytes came in {PATIENCE_S} s")


def belonging(head: bytes, there: bytes) -> int:
    """How many of the bytes that are `there` belong to the header that has begun with `head`. Raises NoHeader."""
    data = head + there
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        wanted = _FIXED.size
        if len(data) >= wanted:
            wanted += _FIXED.unpack_from(data)[3]
        if wanted > MOST_BYTES:
            raise NoHeader(f"a header of {wanted} bytes, more than {MOST_BYTES}")
        return min(len(there), wanted - len(head))
    if data[: len(FIRST)] != FIRST[: len(data)]:
        raise NoHeader(f"it begins with {data[:4]!r}")  # no more: a token may follow
    end = data.find(b"\n", 0, MOST_FIRST) + 1
    if not end and len(data) >= MOST_FIRST:
        raise NoHeader(f"a line that does not end within {MOST_FIRST} bytes")
    return (end or len(data)) - len(head)


def is_whole(head: bytes) -> bool:
    """Whether nothing more belongs to a header of which all bytes were `belonging`."""
    if head[:1] == SIGNATURE[:1]:
        return len(head) >= _FIXED.size and len(head) == _FIXED.size + _FIXED.unpack_from(head)[3]
    return head.endswith(b"\n")


def read_header(head: bytes) -> Announced | None:
    """Who a whole header names; None where it names nobody. Raises NoHeader."""
    return _read_second(head) if head.startswith(SIGNATURE) else _read_first(head)


def _read_first(head: bytes) -> Announced | None:
    match = _LINE.fullmatch(head)
    if match is None:
        raise NoHeader(f"the line {head!r}")
    unknown, version, source, destination, port, _ = match.groups()
    if unknown:
        return None
    found = read_address(source.decode("ascii"))
    if found is None or read_address(destination.decode("ascii")) is None or int(port) > 0xFFFF:
        raise NoHeader(f"the line {head!r}")
    if (b":" in source) != (version == b"6"):
        raise NoHeader(f"an address of another version in {head!r}")
    return Announced(str(found), int(port))


def _read_second(head: bytes) -> Announced | None:
    _, command, family, length = _FIXED.unpack_from(head)
    if command == _LOCAL:
        return None
    if command != _PROXY:
        raise NoHeader(f"version and command {command:#04x}")
    if family in (_UNSPECIFIED, _UNIX):
        return None
    if family not in _FAMILIES:
        raise NoHeader(f"the protocol {family:#04x}")
    form = _FAMILIES[family]
    if length < form.size:
        raise NoHeader(f"{length} bytes of addresses")
    source, _, port, _ = form.unpack_from(head, _FIXED.size)
    return Announced(str(read_address(str(ip_address(source)))), port)
