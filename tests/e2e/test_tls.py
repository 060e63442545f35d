"""TLS on the same port: TLS and plain clients, and bad certificates."""

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
import trustme
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from tests.running import Running, running
from tsd.auth.accounts import Account, write_lines
from tsd.auth.credentials import CertificateName
from tsd.auth.roles import Role

pytestmark = pytest.mark.slow

HOST = "tsd.test"


class Keys(NamedTuple):
    """An authority, and the files of a server certificate that it signed."""

    authority: trustme.CA
    folder: Path

    @property
    def settings(self) -> dict[str, str]:
        return {"tsd.tls.certificate": str(self.folder / "cert.pem"), "tsd.tls.key": str(self.folder / "key.pem")}

    def issue(self, host: str = HOST) -> None:
        """Replace the certificate and key, as renewal tools do."""
        leaf = self.authority.issue_cert(host, key_type=trustme.KeyType.ECDSA)
        for name, blob in (("key.pem", leaf.private_key_pem), ("cert.pem", leaf.cert_chain_pems[0])):
            blob.write_to_path(self.folder / "new")
            os.replace(self.folder / "new", self.folder / name)

    def client(self, minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2) -> ssl.SSLContext:
        """A client's TLS context that trusts the authority."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        context.minimum_version = minimum
        return context


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    made = Keys(trustme.CA(key_type=trustme.KeyType.ECDSA), tmp_path)
    made.issue()
    return made


@asynccontextmanager
async def connected(
    daemon: Running, context: ssl.SSLContext, host: str = HOST
) -> AsyncIterator[trio.SSLStream[trio.SocketStream]]:
    """Open an encrypted connection."""
    stream = await trio.open_tcp_stream("127.0.0.1", daemon.port)
    encrypted = trio.SSLStream(stream, context, server_hostname=host)
    try:
        await encrypted.do_handshake()
        yield encrypted
    finally:
        await trio.aclose_forcefully(encrypted)


async def read_to_end(stream: trio.abc.ReceiveStream) -> bytes:
    found = b""
    while data := await stream.receive_some():
        found += data
    return found


@pytest.mark.difference(
    "tls",
    topic="security",
    theirs="There is no encryption",
    ours="The same port serves TLS if a certificate is configured",
)
async def test_tls_and_plain_telnet_and_http_on_one_port(tmp_path: Path, keys: Keys) -> None:
    async with running(tmp_path / "state", keys.settings) as daemon:
        async with connected(daemon, keys.client()) as stream:
            await stream.send_all(b"put a.b 1500000000 1 host=a\nput a.b\nsync\nexit\n")
            output = await read_to_end(stream)  # trio checks that TLS is closed properly
            assert output.startswith(b"put: illegal argument: not enough arguments")
            assert output.endswith(b"synced 1\n")
        async with connected(daemon, keys.client()) as stream:
            await stream.send_all(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in await read_to_end(stream)
        assert b"synced 1\n" in await daemon.send_lines(b"put a.b 1500000001 1 host=a\n")
        assert daemon.daemon.access.tls is not None
        statistics = daemon.daemon.access.tls.statistics()
        assert (statistics.handshakes, statistics.failed, statistics.plain) == (2, 0, 0)
        assert statistics.seconds_left > 0


async def test_tls_with_large_replies_and_bodies(tmp_path: Path, keys: Keys) -> None:
    async with running(tmp_path / "state", keys.settings) as daemon, connected(daemon, keys.client()) as stream:
        lines = b"".join(b"put a.b %d 1 host=a\n" % (1_500_000_000 + at) for at in range(50_000))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.send_all, lines + b"bad line\n" * 5000 + b"sync\nexit\n")
            output = await read_to_end(stream)
        assert output.count(b"\n") == 5001
        assert output.endswith(b"synced 50000\n")


async def test_plain_clients_refused_if_tls_required(tmp_path: Path, keys: Keys) -> None:
    async with running(tmp_path / "state", {**keys.settings, "tsd.tls.required": "true"}) as daemon:
        async with daemon.client() as client:
            await client.send(b"put a.b 1500000000 1 host=a\n" * 1000)
            assert await client.read_to_end() == b"TLS is required on this port.\n"
        async with daemon.client() as client:
            await client.send(b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            output = await client.read_to_end()
            assert output.startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
            assert output.endswith(b"TLS is required on this port.\n")
        async with connected(daemon, keys.client()) as stream:
            await stream.send_all(b"stats\nexit\n")
            (counted,) = [line for line in (await read_to_end(stream)).splitlines() if b"http.errors" in line]
        assert counted.split()[0] == b"tsd.http.errors"
        assert counted.split()[2:4] == [b"1", b"status=426"]


async def test_plain_client_of_a_port_that_requires_tls_is_logged(tmp_path: Path, keys: Keys) -> None:
    """Agents do not read the reply: only the log can say why their points are missing. It does so once for many
    attempts."""
    async with running(tmp_path / "state", {**keys.settings, "tsd.tls.required": "true"}) as daemon:
        with capture_logs() as logs:
            for _ in range(3):
                async with daemon.client() as client:
                    await client.send(b"put a.b 1500000000 1 host=a\n")
                    await client.read_to_end()
    assert [(entry["event"], entry["address"]) for entry in logs if "address" in entry] == [
        ("tls.plain_refused", "127.0.0.1")
    ]


async def test_half_closed_tls_client_gets_all_replies(tmp_path: Path, keys: Keys) -> None:
    """As `openssl s_client < file` does: the client ends its side and keeps reading."""
    async with running(tmp_path / "state", keys.settings) as daemon:
        stream = await trio.open_tcp_stream("127.0.0.1", daemon.port)
        encrypted = trio.SSLStream(stream, keys.client(), server_hostname=HOST, https_compatible=True)
        await encrypted.send_all(b"put a.b 1500000000 1 host=a\nsync\n")
        await stream.send_eof()
        assert await read_to_end(encrypted) == b"synced 1\n"
        await trio.aclose_forcefully(stream)


async def test_new_certificate_used_and_broken_one_ignored(tmp_path: Path, keys: Keys) -> None:
    async with running(tmp_path / "state", keys.settings) as daemon:
        tls = daemon.daemon.access.tls
        assert tls is not None
        assert ("the certificate", tls.reload) in daemon.daemon.reloads  # of SIGHUP
        async with connected(daemon, keys.client()) as old:
            keys.issue("other.test")
            await tls.reload()
            async with connected(daemon, keys.client(), "other.test") as stream:
                await stream.send_all(b"exit\n")
                assert await read_to_end(stream) == b""
            (keys.folder / "key.pem").write_bytes(b"-----BEGIN PRIVATE KEY-----\nbroken\n")
            with pytest.raises(Exception, match="pem"):
                await tls.reload()
            async with connected(daemon, keys.client(), "other.test") as stream:
                await stream.send_all(b"exit\n")
                assert await read_to_end(stream) == b""
            await old.send_all(b"sync\nexit\n")  # open connections stay open
            assert await read_to_end(old) == b"synced 0\n"


@pytest.mark.parametrize("minimum", ["1.2", "1.3"])
async def test_old_tls_versions_are_refused(tmp_path: Path, keys: Keys, minimum: str) -> None:
    versions = {"1.0": ssl.TLSVersion.TLSv1, "1.1": ssl.TLSVersion.TLSv1_1, "1.2": ssl.TLSVersion.TLSv1_2}
    versions["1.3"] = ssl.TLSVersion.TLSv1_3
    async with running(tmp_path / "state", {**keys.settings, "tsd.tls.minimum": minimum}) as daemon:
        for name, version in versions.items():
            context = keys.client()
            context.set_ciphers("ALL:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning, match="TLSv1") if name < "1.2" else nullcontext():
                context.minimum_version = context.maximum_version = version
            if name < minimum:
                with pytest.raises(trio.BrokenResourceError):
                    async with connected(daemon, context):
                        pass
            else:
                async with connected(daemon, context) as stream:
                    assert stream.version() == f"TLSv{name}"
        assert daemon.daemon.access.tls is not None
        assert daemon.daemon.access.tls.statistics().failed == len([name for name in versions if name < minimum])


@pytest.mark.parametrize("kind", ["optional", "required"])
async def test_client_certificate_authenticates(tmp_path: Path, keys: Keys, kind: str) -> None:
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(tmp_path / "clients.pem")
    write_lines(tmp_path / "accounts", [str(Account("agent", Role.WRITE, CertificateName("DNS=agent.test")))])
    access = {
        **keys.settings,
        "tsd.tls.client_ca": str(tmp_path / "clients.pem"),
        "tsd.tls.client_certificate": kind,
        "tsd.core.authentication.enable": "true",
        "tsd.auth.file": str(tmp_path / "accounts"),
    }
    async with running(tmp_path / "state", access=access) as daemon:
        for name, output in {
            "agent.test": b"synced 1\n",
            "other.test": b"AUTH_FAIL\r\n" * 3,
            "": b"AUTH_FAIL\r\n" * 3,
        }.items():
            context = keys.client()
            if name:
                authority.issue_cert(name, key_type=trustme.KeyType.ECDSA).configure_cert(context)
            try:
                async with connected(daemon, context) as stream:
                    await stream.send_all(b"put a.b 1500000000 1 host=a\nsync\nexit\n")
                    await stream.transport_stream.send_eof()
                    assert await read_to_end(stream) == output
                    assert name or kind == "optional"
            except trio.BrokenResourceError:  # with TLS 1.3 a client notices when it reads
                assert (name, kind) == ("", "required")
        foreign = keys.client()
        trustme.CA().issue_cert("agent.test").configure_cert(foreign)
        with suppress(trio.BrokenResourceError):
            async with connected(daemon, foreign) as stream:
                await stream.send_all(b"put a.b 1500000000 1 host=a\n")
                assert await read_to_end(stream) == b""
        assert daemon.daemon.ingest.ledger.received == 1


async def test_stalled_handshake_closed_and_others_served(tmp_path: Path, keys: Keys) -> None:
    async with running(tmp_path / "state", keys.settings) as daemon, trio.open_nursery() as nursery:
        tls = daemon.daemon.access.tls
        assert tls is not None
        usual_s, tls.handshake_s = tls.handshake_s, 0.3

        async def begin(hello: bytes) -> None:
            async with daemon.client() as client:
                await client.send(hello)
                assert await client.read_to_end() == b""

        for hello in (b"\x16", b"\x16\x03\x01\x02\x00\x01", b"\x16\x03\x01\x00\x05hello", b"\x16" * 100_000):
            for _ in range(25):
                nursery.start_soon(begin, hello)
        await wait_all_tasks_blocked()  # all have begun
        tls.handshake_s = usual_s  # that of others may take longer on a busy machine
        async with connected(daemon, keys.client()) as stream:
            await stream.send_all(b"put a.b 1500000000 1 host=a\nsync\nexit\n")
            assert await read_to_end(stream) == b"synced 1\n"
    statistics = tls.statistics()
    assert (statistics.handshakes, statistics.failed + statistics.late) == (1, 100)
