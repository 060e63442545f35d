"""Client addresses in headers of HTTP proxies: only entries of trusted proxies count."""

import pytest

from tsd.auth.networks import forwarded_client, parse_networks

TRUSTED = parse_networks("10.0.0.0/8, fd00::/8")
PEER = "10.0.0.1"


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({}, PEER),
        ({"x-forwarded-for": "192.0.2.7"}, "192.0.2.7"),
        ({"x-forwarded-for": "127.0.0.1, 192.0.2.7"}, "192.0.2.7"),  # written by the client
        ({"x-forwarded-for": "nonsense!, 192.0.2.7"}, "192.0.2.7"),
        ({"x-forwarded-for": "192.0.2.7, 10.1.2.3,10.0.0.2"}, "192.0.2.7"),
        ({"x-forwarded-for": "10.5.5.5"}, "10.5.5.5"),
        ({"x-forwarded-for": "192.0.2.7:4711"}, "192.0.2.7"),
        ({"x-forwarded-for": "[2001:db8::1]:4711"}, "2001:db8::1"),
        ({"x-forwarded-for": "2001:db8::1"}, "2001:db8::1"),
        ({"x-forwarded-for": "::ffff:192.0.2.7"}, "192.0.2.7"),
        ({"forwarded": "for=192.0.2.7;proto=https;by=10.0.0.1"}, "192.0.2.7"),
        ({"forwarded": 'by=x; For="[2001:db8::1]:4711" , for=10.0.0.3'}, "2001:db8::1"),
        ({"forwarded": "for=_hidden, for=192.0.2.7"}, "192.0.2.7"),
        ({"forwarded": "for=192.0.2.7", "x-forwarded-for": "1.1.1.1, 192.0.2.7"}, "192.0.2.7"),
    ],
)
def test_last_untrusted_hop_is_the_client(headers: dict[str, str], wanted: str) -> None:
    assert forwarded_client(headers, PEER, TRUSTED) == wanted


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"x-forwarded-for": ""}, "''"),
        ({"x-forwarded-for": "unknown"}, "'unknown'"),
        ({"x-forwarded-for": "192.0.2.7, "}, "''"),
        ({"x-forwarded-for": "192.0.2.256"}, "'192.0.2.256'"),
        ({"x-forwarded-for": "192.0.2.7:port"}, "'192.0.2.7:port'"),
        ({"x-forwarded-for": "fe80::1%eth0"}, "'fe80::1%eth0'"),
        ({"x-forwarded-for": "host.example"}, "'host.example'"),
        ({"x-forwarded-for": ", ".join(["10.0.0.2"] * 100)}, r"\b\d+\b"),  # the most that are allowed
        ({"forwarded": ""}, "Forwarded"),
        ({"forwarded": "192.0.2.7"}, "Forwarded"),
        ({"forwarded": "for=unknown"}, "'unknown'"),
        ({"forwarded": "for=_hidden"}, "'_hidden'"),
        ({"forwarded": "proto=http"}, "Forwarded"),
        ({"forwarded": "for=192.0.2.7;for=192.0.2.8"}, "Forwarded"),
        ({"forwarded": "for=192.0.2.7;"}, "Forwarded"),
        ({"forwarded": 'for="192.0.2.7'}, "Forwarded"),
        ({"forwarded": "for=192.0.2.7 for=192.0.2.8"}, "Forwarded"),
        # written by the client, and forwarded
        ({"forwarded": "for=127.0.0.1", "x-forwarded-for": "192.0.2.7"}, r"127\.0\.0\.1.*192\.0\.2\.7"),
    ],
)
def test_invalid_forwarded_header_is_refused(headers: dict[str, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        forwarded_client(headers, PEER, TRUSTED)


def test_long_forwarded_header_is_parsed_quickly() -> None:
    for text in ("for=" * 16000, 'for="' + "\\" * 64000, "a" * 64000, "for=1.1.1.1;" * 5000, '"' * 64000):
        with pytest.raises(ValueError, match="Forwarded"):
            forwarded_client({"forwarded": text}, PEER, TRUSTED)
