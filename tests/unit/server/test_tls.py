"""Reloading of certificate files, and revocation."""

import errno
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from structlog.testing import capture_logs
from trio.testing import MockClock, open_stream_to_socket_listener

from tests.unit.clock import advance_to_next_poll
from tsd.config.settings import AccessSettings
from tsd.errors import TsdError
from tsd.server.tls import RELOAD_INTERVAL_S, Tls

BEGINNING, NEVER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
AUTHORITY = trustme.CA(key_type=trustme.KeyType.ECDSA)


def issue(folder: Path, name: str, *files: str) -> None:
    """Replace a certificate and key, or one of the files."""
    leaf = AUTHORITY.issue_cert(name, key_type=trustme.KeyType.ECDSA)
    for file, blob in (("cert", leaf.cert_chain_pems[0]), ("key", leaf.private_key_pem)):
        if file in files:
            blob.write_to_path(folder / "new")
            os.replace(folder / "new", folder / file)


def made(folder: Path, **more: str) -> Tls:
    settings = AccessSettings(tls_certificate=str(folder / "cert"), tls_key=str(folder / "key"))
    return Tls(replace(settings, **more), lambda: 1_800_000_000_000)


async def test_changed_certificate_is_reloaded(tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery) -> None:
    issue(tmp_path, "one.test", "cert", "key")
    tls = made(tmp_path)
    nursery.start_soon(tls.watch)

    async def look() -> list[str]:
        """Return what the next check logs."""
        with capture_logs() as logs:
            await advance_to_next_poll(mock_clock, RELOAD_INTERVAL_S)
        return [str(line.get("names") or line["error"]) for line in logs]

    assert await look() == []
    issue(tmp_path, "two.test", "cert", "key")
    assert await look() == ["two.test"]
    issue(tmp_path, "three.test", "key")
    (because,) = await look()
    assert because.startswith(f"{tmp_path}/cert and {tmp_path}/key: ")
    assert tls.statistics().seconds_left > 0  # the old certificate's
    os.unlink(tmp_path / "key")
    # the error is the key's, not the certificate's
    assert await look() == [f"{tmp_path}/key: No such file or directory"]
    assert await look() == []
    issue(tmp_path, "four.test", "cert", "key")
    assert await look() == ["four.test"]


def revoked(*pems: bytes, until: datetime = NEVER) -> bytes:
    """Return the authority's revocation list."""
    mine = x509.load_pem_x509_certificate(AUTHORITY.cert_pem.bytes())
    made = x509.CertificateRevocationListBuilder().issuer_name(mine.subject)
    made = made.last_update(BEGINNING).next_update(until)
    for pem in pems:
        number = x509.load_pem_x509_certificate(pem).serial_number
        one = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(BEGINNING)
        made = made.add_revoked_certificate(one.build())
    key = serialization.load_pem_private_key(AUTHORITY.private_key_pem.bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


async def lets_in(tls: Tls, leaf: trustme.LeafCert | None) -> bool:
    """Return whether a client with this certificate is served."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    if leaf is not None:
        leaf.configure_cert(context)
    listener, *_ = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    served = []

    async def serve() -> None:
        async with listener, await listener.accept() as stream:
            opened = await tls.accept(stream, "127.0.0.1")
            served.append(opened)
            if isinstance(opened, trio.SSLStream):
                await opened.send_all(b"x")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        stream = trio.SSLStream(await trio.open_tcp_stream("127.0.0.1", port), context, server_hostname="one.test")
        with suppress(trio.BrokenResourceError):
            await stream.do_handshake()
            await stream.receive_some()
        await trio.aclose_forcefully(stream)
    return served != [None]


async def test_revoked_certificate_is_refused(tmp_path: Path) -> None:
    issue(tmp_path, "one.test", "cert", "key")
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca")
    (tmp_path / "crl").write_bytes(revoked())
    good, bad = (AUTHORITY.issue_cert(name, key_type=trustme.KeyType.ECDSA) for name in ("good", "bad"))
    tls = made(tmp_path, tls_client_ca=str(tmp_path / "ca"), tls_client_crl=str(tmp_path / "crl"))
    assert [await lets_in(tls, leaf) for leaf in (good, bad, None)] == [True, True, True]
    (tmp_path / "crl").write_bytes(revoked(bad.cert_chain_pems[0].bytes()))
    await tls.reload()
    assert [await lets_in(tls, leaf) for leaf in (good, bad, None)] == [True, False, True]
    # an expired list: a newer one may revoke it
    (tmp_path / "crl").write_bytes(revoked(until=datetime(2020, 1, 1, tzinfo=UTC)))
    await tls.reload()
    assert [await lets_in(tls, leaf) for leaf in (good, None)] == [False, True]
    (tmp_path / "crl").write_bytes(b"nonsense")
    with pytest.raises(TsdError, match=str(tmp_path / "crl")):
        await tls.reload()


async def test_failed_handshake_is_logged_with_its_reason(tmp_path: Path) -> None:
    """Regression: operators of agents with a wrong authority found nothing in the log. It is named once for many
    attempts."""
    issue(tmp_path, "one.test", "cert", "key")
    tls = made(tmp_path)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    place = listener.socket.getsockname()

    def connect() -> None:
        """Connect without trust in the authority. trio's client would not send the alert."""
        with pytest.raises(ssl.SSLCertVerificationError), socket.create_connection(place) as plain:
            ssl.create_default_context().wrap_socket(plain, server_hostname="one.test")

    with capture_logs() as logs:
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, connect)
                async with await listener.accept() as stream:
                    assert await tls.accept(stream, "127.0.0.1") is None
    await listener.aclose()
    (failed,) = logs
    assert (failed["event"], failed["log_level"], failed["address"]) == ("tls.handshake_failed", "warning", "127.0.0.1")
    assert "unknown ca" in failed["error"]
    assert tls.statistics().failed == 3


async def test_handshake_that_takes_too_long_is_logged(tmp_path: Path, autojump_clock: MockClock) -> None:
    issue(tmp_path, "one.test", "cert", "key")
    tls = made(tmp_path)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, await open_stream_to_socket_listener(listener) as client, await listener.accept() as stream:
        await client.send_all(b"\x16\x03\x01")
        with capture_logs() as logs:
            assert await tls.accept(stream, "127.0.0.1") is None
    assert [(entry["event"], entry["address"]) for entry in logs] == [("tls.handshake_failed", "127.0.0.1")]
    assert tls.statistics().late == 1


def test_certificate_in_revocation_file_is_refused(tmp_path: Path) -> None:
    """It would be trusted as an authority, as if `tsd.tls.client_ca` named it."""
    issue(tmp_path, "one.test", "cert", "key")
    AUTHORITY.cert_pem.write_to_path(tmp_path / "ca")
    other = trustme.CA(key_type=trustme.KeyType.ECDSA).cert_pem.bytes()
    trusted = other.replace(b" CERTIFICATE", b" TRUSTED CERTIFICATE")
    for among in (revoked() + other, other + revoked(), revoked() + b"x" * 254 + other, revoked() + trusted, other):
        (tmp_path / "crl").write_bytes(among)
        with pytest.raises(TsdError, match=rf"{tmp_path}/crl\b.*\btsd\.tls\.client_crl\b"):
            made(tmp_path, tls_client_ca=str(tmp_path / "ca"), tls_client_crl=str(tmp_path / "crl"))


@pytest.mark.parametrize(("spoiled", "other"), [("cert", "key"), ("key", "cert")])
def test_file_of_another_kind_is_named(tmp_path: Path, spoiled: str, other: str) -> None:
    """Regression: the error named both files and OpenSSL's function, as after an exchange of the two settings."""
    issue(tmp_path, "one.test", "cert", "key")
    (tmp_path / spoiled).write_bytes((tmp_path / other).read_bytes())
    with pytest.raises(TsdError) as caught:
        made(tmp_path)
    assert str(tmp_path / spoiled) in str(caught.value)
    assert str(tmp_path / other) not in str(caught.value)


def test_error_names_the_invalid_file(tmp_path: Path) -> None:
    issue(tmp_path, "one.test", "cert", "key")
    (tmp_path / "key").unlink()
    with pytest.raises(TsdError, match=rf"{tmp_path}/key\b.*{os.strerror(errno.ENOENT)}"):
        made(tmp_path)
