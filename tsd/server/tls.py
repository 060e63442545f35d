"""TLS on the port: a connection whose first byte is a handshake's is encrypted, and what it speaks inside is found out
as on any other.

Certificate and key are read again when their files change, for connections that come then. A pair that cannot be used
changes nothing: the last good one is kept, and that is said.
"""

import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import structlog
import trio

from tsd.access.certificates import Certificate, read_certificate
from tsd.access.files import State, state_of
from tsd.access_settings import AccessSettings
from tsd.doors.handshakes import InTurn, Turns
from tsd.errors import TsdError

log = structlog.get_logger(__name__)

HANDSHAKE = 0x16  # the first byte of a TLS connection
CAPITALS = frozenset(range(ord("A"), ord("Z") + 1))
LOOK_S = 5  # between looks at the files
CLOSE_WAIT = 8  # a state of TCP, as Linux numbers them
PARTING_S = 2  # for a client to agree that the connection is over
SOON_S = 14 * 86400  # a certificate that ends within this is warned of
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of 1.2: with forward secrecy and authenticated; 1.3 has no others
BEGIN, BEGIN_CRL = b"-----BEGIN ", b"-----BEGIN X509 CRL-----"  # OpenSSL cuts long lines: they may stand anywhere
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

TOLD = b"TLS is required on this port.\n"
TOLD_HTTP = (
    b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: TLS/1.2\r\nConnection: Upgrade, close\r\n"
    b"Content-Type: text/plain; charset=UTF-8\r\nContent-Length: %d\r\n\r\n%b" % (len(TOLD), TOLD)
)

Encrypted = trio.SSLStream[trio.abc.Stream]


class Statistics(NamedTuple):
    """The numbers of this moment."""

    handshakes: int  # that succeeded
    failed: int
    late: int  # that took too long
    plain: int  # connections refused because they were not encrypted
    seconds_left: int  # that the certificate holds


class _Keys(NamedTuple):
    """What was read of the files."""

    context: ssl.SSLContext
    certificate: Certificate


class Tls:
    """Encryption of the port's connections."""

    def __init__(self, settings: AccessSettings, now_ms: Callable[[], int]) -> None:
        """Raises TsdError where certificate and key cannot be used."""
        self._settings = settings
        self._now_ms = now_ms
        self._files = _files_of(settings)
        self._seen = _states_of(self._files)
        self._keys = _read(settings)
        self._turns = Turns()
        self._handshakes = self._failed = self._late = self._plain = 0
        self._say()

    async def opened(self, stream: trio.SocketStream) -> trio.SocketStream | Encrypted | None:
        """The stream to go on with, once the client has sent its first byte; None where there is nothing to say to it
        any more."""
        try:
            first = await stream.socket.recv(1, trio.socket.MSG_PEEK)
        except OSError as exc:
            raise trio.BrokenResourceError from exc
        if first[:1] == bytes([HANDSHAKE]):
            return await self._agreed(stream)
        if first and self._settings.tls_required:
            self._plain += 1
            await stream.send_all(TOLD_HTTP if first[0] in CAPITALS else TOLD)
            return None
        return stream

    async def _agreed(self, stream: trio.SocketStream) -> Encrypted | None:
        """The encrypted connection; None where client and we cannot agree."""
        with trio.move_on_after(self._settings.tls_handshake_ms / 1000) as scope:
            handshaking: trio.abc.Stream = InTurn(stream, self._turns, scope)
            encrypted = trio.SSLStream(handshaking, self._keys.context, server_side=True, https_compatible=True)
            try:
                await encrypted.do_handshake()
            except trio.BrokenResourceError as error:
                self._failed += 1
                log.debug("no TLS with a client", because=str(error.__cause__ or error))
                return None
        if scope.cancelled_caught:
            self._late += 1
            return None
        encrypted.transport_stream = stream  # nobody waits for turns any more
        self._handshakes += 1
        return encrypted

    async def watch(self) -> None:
        """Read the files again whenever they change, for ever."""
        while True:
            await trio.sleep(LOOK_S)
            if await trio.to_thread.run_sync(_states_of, self._files) != self._seen:
                try:
                    await self.reload()
                except TsdError as error:
                    log.error("the certificate has changed and cannot be used; the old one is kept", because=str(error))

    async def reload(self) -> None:
        """Read the files again. Raises TsdError, and then nothing has changed."""
        self._seen = await trio.to_thread.run_sync(_states_of, self._files)
        self._keys = await trio.to_thread.run_sync(_read, self._settings)
        self._say()

    def _say(self) -> None:
        certificate = self._keys.certificate
        left_s = certificate.seconds_left(self._now_ms())
        told = log.info if left_s > SOON_S else log.warning
        told(
            "certificate read" if left_s > 0 else "the certificate is no longer valid",
            subject=certificate.subject,
            names=" ".join(certificate.names),
            until=certificate.expires.isoformat(),
        )

    def statistics(self) -> Statistics:
        """The numbers of this moment."""
        left_s = self._keys.certificate.seconds_left(self._now_ms())
        return Statistics(self._handshakes, self._failed, self._late, self._plain, left_s)


def _read(settings: AccessSettings) -> _Keys:
    """What the files hold. Raises TsdError."""
    name = ""
    try:
        for name in _files_of(settings):
            with open(name, "rb"):  # ssl does not say which one it cannot open
                pass
        name = " and ".join(filter(None, (settings.tls_certificate, settings.tls_key)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = VERSIONS[settings.tls_minimum]
        context.set_ciphers(CIPHERS)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF  # who ends its side without a word is still told what it asked
        context.load_cert_chain(settings.tls_certificate, settings.tls_key or None, password=_no_password)
        if settings.tls_client_ca:
            name = settings.tls_client_ca
            required = settings.tls_client_certificate == "required"
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
            context.load_verify_locations(name)
            if settings.tls_client_crl:
                name = settings.tls_client_crl
                _check_revocations(name)
                context.load_verify_locations(name)
                context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        name = settings.tls_certificate
        with open(settings.tls_certificate, "rb") as file:
            return _Keys(context, read_certificate(file.read()))
    except OSError as exc:  # ssl.SSLError is one
        raise TsdError(f"{name}: {exc.strerror or exc}") from exc


def _check_revocations(name: str) -> None:
    """Raise TsdError for a file that holds anything but lists of revoked certificates: OpenSSL would trust whatever
    certificate stands among them, and whoever that one vouches for."""
    with open(name, "rb") as file:
        pem = file.read()
    if pem.count(BEGIN) != pem.count(BEGIN_CRL) or BEGIN_CRL not in pem:
        raise TsdError(f"{name}: tsd.tls.client_crl takes lists of revoked certificates in PEM form, and nothing else")


def _no_password() -> str:
    raise TsdError("tsd.tls.key: the key is encrypted, and nobody is there to type its password")


def _files_of(settings: AccessSettings) -> list[str]:
    named = (settings.tls_certificate, settings.tls_key, settings.tls_client_ca, settings.tls_client_crl)
    return [name for name in named if name]


def _states_of(files: list[str]) -> list[State]:
    return [state_of(name) for name in files]


async def say_goodbye(stream: Encrypted) -> None:
    """Tell the client that nothing more comes, so that it can tell an end from a cut."""
    with trio.move_on_after(PARTING_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.unwrap()


def socket_of(stream: trio.abc.Stream) -> trio.SocketStream | None:
    """The socket below a stream, encrypted or not."""
    below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    return below if isinstance(below, trio.SocketStream) else None


def has_hung_up(stream: trio.SocketStream) -> bool:
    """Whether the client has closed its side, even where bytes of it are still unread."""
    return stream.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_INFO, 1)[0] == CLOSE_WAIT
