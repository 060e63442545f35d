"""The values of HTTP's Host header that requests may have: `tsd.http.hosts`.

A page of a foreign site whose name is rebound to this daemon's address (DNS rebinding) has the daemon's origin for a
browser. Its requests still have the foreign name in their Host header.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NamedTuple

from tsd.auth.networks import parse_address

LOCAL_HOSTS = "localhost, *.localhost, 127.0.0.0/8, ::1"
DEFAULT_PORTS = (80, 443)  # of HTTP and HTTPS: a Host header without a port stands for one of them
MAX_ALLOWED, MAX_KEPT_CHARS = 100, 300  # headers that are kept, and the longest of them
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+(?:%[^\]\s]+)?\]|[^\s:\[\]/@]+)(?::(?P<port>\d{1,5})?)?")
_NAME = re.compile(r"(?:\*\.)?[\w-]+(?:\.[\w-]+)*\.?", re.ASCII)


class _Entry(NamedTuple):
    """One allowed name, or network of addresses."""

    name: str  # in lower case; with a dot at its start: each name that ends like this
    network: IPv4Network | IPv6Network | None
    port: int | None  # None: any port

    def has(self, name: str, ports: Sequence[int]) -> bool:
        if self.port is not None and self.port not in ports:
            return False
        if self.network is not None:
            address = parse_address(name)
            return address is not None and address in self.network
        return name.endswith(self.name) if self.name.startswith(".") else name == self.name


class Hosts:
    """A list of allowed hosts. None: every host is allowed."""

    def __init__(self, entries: Sequence[_Entry] | None) -> None:
        self._entries = entries
        self._allowed: set[str] = set()  # headers of requests before

    def allows(self, header: str) -> bool:
        """Return whether a request with this Host header is allowed. Browsers always send one: "" is allowed.

        >>> hosts = parse_hosts("tsd.example.com:4242, *.lan, ::1")
        >>> [hosts.allows(text) for text in ("TSD.example.com:4242", "a.lan", "[::1]:80", "tsd.example.com", "lan")]
        [True, True, True, False, False]
        """
        if self._entries is None or not header or header in self._allowed:
            return True
        match = _HOST.fullmatch(header)
        if match is None:
            return False
        name = match["name"].strip("[]").lower().removesuffix(".")
        ports = (int(match["port"]),) if match["port"] else DEFAULT_PORTS
        if not any(entry.has(name, ports) for entry in self._entries):
            return False
        if len(self._allowed) < MAX_ALLOWED and len(header) <= MAX_KEPT_CHARS:
            self._allowed.add(header)
        return True


ANY_HOST = Hosts(None)


def parse_hosts(text: str) -> Hosts:
    """Parse names, addresses and networks, separated by commas; `*` stands for every host. Raise ValueError."""
    words = [word for part in text.split(",") if (word := part.strip())]
    return ANY_HOST if "*" in words else Hosts([_parse(word) for word in words])


def _parse(word: str) -> _Entry:
    host, port = word, None
    if (word.count(":") == 1 or word.startswith("[")) and (match := re.fullmatch(r"(.+):(\d{1,5})", word)):
        host, port = match[1], int(match[2])
    try:
        return _Entry("", ip_network(host.strip("[]")), port)
    except ValueError:
        if not _NAME.fullmatch(host) or re.fullmatch(r"[\d.]+", host):
            wanted = "a name as tsd.example.com or *.example.com, an address or a network, with :PORT for one port only"
            raise ValueError(f"got {word!r}, wanted {wanted}, or *") from None
    return _Entry(host.lower().removeprefix("*").removesuffix("."), None, port)
