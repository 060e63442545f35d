"""The PROXY protocol (HAProxy's specification, versions 1 and 2): a balancer sends the client's address first.

The header is required from configured balancers, and not accepted from other addresses.
"""

import re
import struct
from ipaddress import ip_address
from typing import NamedTuple

import trio

from tsd.auth.networks import parse_address
from tsd.errors import TsdError

HEADER_TIMEOUT_S = 5  # balancers send the header at once
SIGNATURE_V2 = b"\r\n\r\n\0\r\nQUIT\n"  # of version 2
SIGNATURE_V1 = b"PROXY "  # of version 1
MAX_LINE, MAX_HEADER = 107, 2048  # of a line of version 1; of a header of version 2 with its extensions
_FIXED = struct.Struct("!12sBBH")
_LINE = re.compile(rb"PROXY (?:(UNKNOWN)[^\r\n]*|TCP([46]) ([0-9A-Fa-f:.]+) ([0-9A-Fa-f:.]+) (\d{1,5}) (\d{1,5}))\r\n")
_LOCAL, _PROXY = 0x20, 0x21
_FAMILIES = {0x11: struct.Struct("!4s4sHH"), 0x21: struct.Struct("!16s16sHH")}  # source and destination over TCP
_UNSPECIFIED, _UNIX = 0x00, 0x31


class MissingProxyHeader(TsdError):
    """A balancer's connection does not start with a valid header."""


class ProxiedAddress(NamedTuple):
    """The client's address and port."""

    address: str
    port: int


async def read_proxy_header(sock: trio.socket.SocketType) -> ProxiedAddress | None:
    """Read exactly the header from a socket and return the client's address; None for the balancer's own connections.
    Raise MissingProxyHeader, OSError."""
    head = b""
    with trio.move_on_after(HEADER_TIMEOUT_S):
        while True:
            available = await sock.recv(MAX_HEADER, trio.socket.MSG_PEEK)
            if not available and not head:
                raise ConnectionResetError("health check of a balancer")
            if not available:
                raise MissingProxyHeader(f"the connection ended after {len(head)} bytes")
            head += await sock.recv(header_bytes(head, available))
            if is_complete(head):
                return parse_header(head)
    raise MissingProxyHeader(f"got {len(head)} bytes in {HEADER_TIMEOUT_S} s")


def header_bytes(head: bytes, available: bytes) -> int:
    """Return how many `available` bytes belong to the header that starts with `head`. Raise MissingProxyHeader."""
    data = head + available
    if data[: len(SIGNATURE_V2)] == SIGNATURE_V2[: len(data)]:
        wanted = _FIXED.size
        if len(data) >= wanted:
            wanted += _FIXED.unpack_from(data)[3]
        if wanted > MAX_HEADER:
            raise MissingProxyHeader(f"got a header of {wanted} bytes, more than {MAX_HEADER}")
        return min(len(available), wanted - len(head))
    if data[: len(SIGNATURE_V1)] != SIGNATURE_V1[: len(data)]:
        raise MissingProxyHeader(f"got {data[:4]!r} at its start")  # not more of it: a token may follow
    end = data.find(b"\n", 0, MAX_LINE) + 1
    if not end and len(data) >= MAX_LINE:
        raise MissingProxyHeader(f"got a line of more than {MAX_LINE} bytes")
    return (end or len(data)) - len(head)


def is_complete(head: bytes) -> bool:
    """Return whether a header is complete. `head` contains no bytes after it."""
    if head[:1] == SIGNATURE_V2[:1]:
        return len(head) >= _FIXED.size and len(head) == _FIXED.size + _FIXED.unpack_from(head)[3]
    return head.endswith(b"\n")


def parse_header(head: bytes) -> ProxiedAddress | None:
    """Return the address of a complete header; None if it has none. Raise MissingProxyHeader."""
    return _parse_v2(head) if head.startswith(SIGNATURE_V2) else _parse_v1(head)


def _parse_v1(head: bytes) -> ProxiedAddress | None:
    match = _LINE.fullmatch(head)
    if match is None:
        raise MissingProxyHeader(f"got the line {head!r}")
    unknown, version, source, destination, port, _ = match.groups()
    if unknown:
        return None
    found = parse_address(source.decode("ascii"))
    if found is None or parse_address(destination.decode("ascii")) is None or int(port) > 0xFFFF:
        raise MissingProxyHeader(f"got the line {head!r}")
    if (b":" in source) != (version == b"6"):
        raise MissingProxyHeader(f"got an address of the other IP version in {head!r}")
    return ProxiedAddress(str(found), int(port))


def _parse_v2(head: bytes) -> ProxiedAddress | None:
    _, command, family, length = _FIXED.unpack_from(head)
    if command == _LOCAL:
        return None
    if command != _PROXY:
        raise MissingProxyHeader(f"got version and command {command:#04x}")
    if family in (_UNSPECIFIED, _UNIX):
        return None
    if family not in _FAMILIES:
        raise MissingProxyHeader(f"got the protocol {family:#04x}")
    form = _FAMILIES[family]
    if length < form.size:
        raise MissingProxyHeader(f"got {length} bytes of addresses")
    source, _, port, _ = form.unpack_from(head, _FIXED.size)
    return ProxiedAddress(str(parse_address(str(ip_address(source)))), port)
