"""Who a request comes from, by the headers of HTTP proxies: `X-Forwarded-For`, and `Forwarded` (RFC 7239).

Each proxy adds the address that it was asked from behind those that it was told. So only what stands behind the last
address that is no trusted proxy's is believed: what is before that, anybody may have written.
"""

import re
from collections.abc import Mapping

from tsd.access.networks import Networks, read_address

MOST_HOPS = 32
_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_PAIR = re.compile(rf"\s*(?P<name>{_WORD})=(?P<value>{_WORD}|\"(?:[^\"\\]|\\.)*\")\s*")
_PLACE = re.compile(r"(?P<v4>[0-9.]+)(?::\d{1,5})?|\[(?P<bare>[0-9A-Fa-f:.]+)\](?::\d{1,5})?|(?P<v6>[0-9A-Fa-f:.]+)")


def client_of(headers: Mapping[str, str], peer: str, trusted: Networks) -> str:
    """The address that a request comes from, which the trusted proxy `peer` sent on; `peer` where it names nobody.
    Headers are by name in lower case, several of one name with commas between. Raises ValueError for what is no such
    header, and where the two of them do not say the same: a client may have written the one that the proxy does not.

    >>> from tsd.access.networks import read_networks
    >>> client_of({"x-forwarded-for": "1.1.1.1, 192.0.2.7, 10.0.0.2"}, "10.0.0.1", read_networks("10.0.0.0/8"))
    '192.0.2.7'
    """
    found = {
        _last_stranger([peer, *reversed(read(headers[name]))], trusted)
        for name, read in (("x-forwarded-for", _listed), ("forwarded", _pairs))
        if name in headers
    }
    if len(found) > 1:
        raise ValueError(f"Forwarded and X-Forwarded-For name different clients: {' and '.join(sorted(found))}")
    return found.pop() if found else peer


def _last_stranger(hops: list[str], trusted: Networks) -> str:
    """The first of the hops, nearest first, that is no trusted proxy; else the farthest."""
    if len(hops) > MOST_HOPS:
        raise ValueError(f"more than {MOST_HOPS} hops")
    address = hops[0]
    for hop in hops[1:]:
        if not trusted.has(address):
            break
        address = _address(hop)
    return address


def _listed(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _pairs(text: str) -> list[str]:
    """What each element of a Forwarded says of `for`."""
    hops, at = [], 0
    hop: str | None = None
    while True:
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError(f"no Forwarded: {text[at : at + 40]!r}")
        if match["name"].lower() == "for":
            if hop is not None:
                raise ValueError("a Forwarded that names two clients in one element")
            hop = match["value"]
        at = match.end()
        if at == len(text) or text[at] == ",":
            if hop is None:
                raise ValueError("a Forwarded that does not say for whom")
            hops.append(re.sub(r"\\(.)", r"\1", hop[1:-1]) if hop.startswith('"') else hop)
            hop = None
            if at == len(text):
                return hops
        elif text[at] != ";":
            raise ValueError(f"no Forwarded: {text[at : at + 40]!r}")
        at += 1


def _address(text: str) -> str:
    """The address of a hop, which may have a port."""
    match = _PLACE.fullmatch(text)
    found = match and read_address(match["v4"] or match["bare"] or match["v6"])
    if not found:
        raise ValueError(f"no address: {text[:60]!r}")
    return str(found)
