"""TLS handshakes on a port with limits of connections."""

import ssl
from pathlib import Path

import trio
import trustme
from trio.testing import MockClock, open_stream_to_socket_listener

from tsd.auth.authenticator import Authenticator
from tsd.config.settings import AccessSettings
from tsd.server.clients import Clients
from tsd.server.listener import AccessControl, Listener, ListenerLimits, Receive
from tsd.server.peer import Peer
from tsd.server.tls import Tls

IDLE_S, LATE_S = 2, 5  # the limit of idle connections, and when a client sends the rest of its first message


async def echo_once(stream: trio.abc.Stream, first: bytes, _receive: Receive, _peer: Peer) -> None:
    await stream.send_all(first)


class SlowSender(trio.abc.SendStream):
    """Sends the first byte of a connection before all others."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._has_begun = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if not self._has_begun:
            self._has_begun = True
            await self._stream.send_all(data[:1])
            await trio.sleep(LATE_S)
            data = data[1:]
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_connection_is_not_idle_within_its_handshake(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The daemon itself delays handshakes when many clients connect at once."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    leaf = authority.issue_cert("one.test", key_type=trustme.KeyType.ECDSA)
    leaf.private_key_and_cert_chain_pem.write_to_path(tmp_path / "pem")
    settings = AccessSettings(tls_certificate=str(tmp_path / "pem"), tls_key=str(tmp_path / "pem"))
    access = AccessControl(Clients(), Authenticator(settings, lambda: 0), Tls(settings, lambda: 0))
    listener = Listener(echo_once, echo_once, ListenerLimits(0, IDLE_S), access)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    ports = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve, ports)
        async with await open_stream_to_socket_listener(ports[0]) as below:
            client = trio.SSLStream(trio.StapledStream(SlowSender(below), below), context, server_hostname="one.test")
            await client.send_all(b"version")
            assert await client.receive_some() == b"version"
        nursery.cancel_scope.cancel()
