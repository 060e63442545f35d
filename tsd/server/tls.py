"""TLS on the port. A connection whose first byte starts a TLS handshake is encrypted; others are not.

Certificate and key are reloaded when their files change, for new connections. If the new files are invalid, the old
ones stay in use and the error is logged.

A handshake computes for up to a millisecond with an RSA key, right after the client's first message. `HandshakeLimiter`
runs one computation at a time and then leaves the event loop to others for `IDLE_RATIO` times as long.
"""

import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import trio

from tsd.auth.accounts import FileState, file_state
from tsd.auth.certificate import Certificate, read_certificate
from tsd.auth.log_limit import LogLimit
from tsd.config.certificate_files import load_certificate
from tsd.config.settings import AccessSettings
from tsd.errors import TsdError
from tsd.lazy import LazyLogger

log = LazyLogger(__name__)


IDLE_RATIO = 3  # handshakes take a quarter of the event loop's time at most


class HandshakeLimiter:
    """Admits one handshake's computation at a time. Its cost is the thread's CPU time."""

    def __init__(self) -> None:
        self._lock = trio.StrictFIFOLock()
        self._free_at = -float("inf")  # in trio's clock

    async def wait(self) -> float:
        """Wait for admission: the caller computes until its next await. Return the wait in seconds."""
        start = trio.current_time()
        async with self._lock:
            await trio.sleep_until(self._free_at)
        self._began = time.thread_time()
        self._free_at = trio.current_time()
        return self._free_at - start

    def finished(self) -> None:
        """End the computation."""
        self._free_at = trio.current_time() + IDLE_RATIO * (time.thread_time() - self._began)


class LimitedHandshake(trio.abc.Stream):
    """A connection during its handshake: it returns received data only when the limiter admits the computation."""

    def __init__(self, stream: trio.SocketStream, limiter: HandshakeLimiter, scope: trio.CancelScope) -> None:
        self._stream = stream
        self._limiter = limiter
        self._scope = scope
        self._admitted = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return received data after admission. The wait extends the deadline: the client did not cause it."""
        self._finish()
        data = await self._stream.receive_some(max_bytes)
        if data:
            self._scope.deadline += await self._limiter.wait()
            self._admitted = True
        return bytes(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send the computed message."""
        self._finish()
        await self._stream.send_all(data)

    def _finish(self) -> None:
        if self._admitted:
            self._admitted = False
            self._limiter.finished()

    async def wait_send_all_might_not_block(self) -> None:
        """See trio.abc.Stream."""
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """See trio.abc.Stream."""
        await self._stream.aclose()


HANDSHAKE_RECORD = 0x16  # first byte of a TLS record with a handshake
CAPITALS = frozenset(range(ord("A"), ord("Z") + 1))
RELOAD_INTERVAL_S = 5
CLOSE_WAIT = 8  # TCP state, from Linux
HANDSHAKE_S = 10.0  # timeout of one handshake
CLOSE_TIMEOUT_S = 2  # for a client to answer close_notify
EXPIRY_WARNING_S = 14 * 86400  # a certificate that expires within this time is a warning
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # for TLS 1.2: forward secrecy and AEAD; every cipher of TLS 1.3 has both
BEGIN, BEGIN_CRL = b"-----BEGIN ", b"-----BEGIN X509 CRL-----"  # anywhere in a line: OpenSSL splits long lines
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

TLS_REQUIRED = b"TLS is required on this port.\n"
TLS_REQUIRED_HTTP = (
    b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: TLS/1.2\r\nConnection: Upgrade, close\r\n"
    b"Content-Type: text/plain; charset=UTF-8\r\nContent-Length: %d\r\n\r\n%b" % (len(TLS_REQUIRED), TLS_REQUIRED)
)

Encrypted = trio.SSLStream[trio.abc.Stream]


class TlsStatistics(NamedTuple):
    """A snapshot of the counts."""

    handshakes: int  # completed
    failed: int
    late: int  # timed out
    plain: int  # connections refused for lack of encryption
    plain_http: int  # of these, those that were answered with 426
    seconds_left: int  # until the certificate expires


class _Keys(NamedTuple):
    """The loaded files."""

    context: ssl.SSLContext
    certificate: Certificate


class Tls:
    """TLS of the port's connections."""

    def __init__(self, settings: AccessSettings, now_ms: Callable[[], int]) -> None:
        """Raise TsdError if certificate or key are invalid."""
        self.handshake_s = HANDSHAKE_S  # the longest that one handshake may take
        self._settings = settings
        self._now_ms = now_ms
        self._files = list(tls_files(settings).values())
        self._loaded_state = _file_states(self._files)
        self._keys = _read(settings)
        self._limiter = HandshakeLimiter()
        self._plain_log, self._failed_log = LogLimit(settings.ipv6_prefix), LogLimit(settings.ipv6_prefix)
        self._handshakes = self._failed = self._late = self._plaintext_count = self._plain_http = 0
        self._log_certificate()

    async def accept(self, stream: trio.SocketStream, address: str) -> trio.SocketStream | Encrypted | None:
        """Return the stream to use, after the client's first byte; None if the connection must be closed. `address`
        is the client's."""
        try:
            first = await stream.socket.recv(1, trio.socket.MSG_PEEK)
        except OSError as exc:
            raise trio.BrokenResourceError from exc
        if first[:1] == bytes([HANDSHAKE_RECORD]):
            return await self._handshake(stream, address)
        if first and self._settings.tls_required:
            self._plaintext_count += 1
            if (unlogged := self._plain_log.unlogged(address)) is not None:
                log.warning("tls.plain_refused", address=address, unlogged=unlogged)
            is_http = first[0] in CAPITALS
            self._plain_http += is_http
            await stream.send_all(TLS_REQUIRED_HTTP if is_http else TLS_REQUIRED)
            return None
        return stream

    async def _handshake(self, stream: trio.SocketStream, address: str) -> Encrypted | None:
        """Return the encrypted stream; None if the handshake fails."""
        with trio.move_on_after(self.handshake_s) as scope:
            handshaking: trio.abc.Stream = LimitedHandshake(stream, self._limiter, scope)
            encrypted = trio.SSLStream(handshaking, self._keys.context, server_side=True, https_compatible=True)
            is_done = False
            try:
                await encrypted.do_handshake()
                is_done = True
            except trio.BrokenResourceError as error:
                self._failed += 1
                self._log_failure(address, str(error.__cause__ or error))
                return None
            finally:
                if not is_done:
                    release(encrypted)
        if scope.cancelled_caught:
            self._late += 1
            self._log_failure(address, "it was not complete in time")
            return None
        encrypted.transport_stream = stream  # later reads bypass the limiter
        self._handshakes += 1
        return encrypted

    def _log_failure(self, address: str, error: str) -> None:
        if (unlogged := self._failed_log.unlogged(address)) is not None:
            log.warning("tls.handshake_failed", address=address, error=error, unlogged=unlogged)

    async def watch(self) -> None:
        """Reload the files whenever they change, until cancelled."""
        while True:
            await trio.sleep(RELOAD_INTERVAL_S)
            if await trio.to_thread.run_sync(_file_states, self._files) != self._loaded_state:
                try:
                    await self.reload()
                except TsdError as error:
                    log.error("tls.reload_failed", error=str(error))

    async def reload(self) -> None:
        """Load the files. Raise TsdError, and then changes nothing."""
        self._loaded_state = await trio.to_thread.run_sync(_file_states, self._files)
        self._keys = await trio.to_thread.run_sync(_read, self._settings)
        self._log_certificate()

    def _log_certificate(self) -> None:
        certificate = self._keys.certificate
        left_s = certificate.seconds_left(self._now_ms())
        subject, names, expires = certificate.subject, " ".join(certificate.names), certificate.expires.isoformat()
        if left_s <= 0:
            log.warning("tls.certificate_expired", subject=subject, names=names, expires=expires)
        elif left_s <= EXPIRY_WARNING_S:
            log.warning("tls.certificate_expires_soon", subject=subject, names=names, expires=expires)
        else:
            log.info("tls.certificate_loaded", subject=subject, names=names, expires=expires)

    def statistics(self) -> TlsStatistics:
        """Return a snapshot of the counts."""
        left_s = self._keys.certificate.seconds_left(self._now_ms())
        refused = self._plaintext_count, self._plain_http
        return TlsStatistics(self._handshakes, self._failed, self._late, *refused, left_s)


def check_tls(settings: AccessSettings) -> None:
    """Raise TsdError if certificate, key or another file cannot be used."""
    _read(settings)


def _read(settings: AccessSettings) -> _Keys:
    """Load the files. Raise TsdError."""
    name = ""
    try:
        for name in tls_files(settings).values():
            with open(name, "rb"):  # ssl's errors do not name the file
                pass
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = VERSIONS[settings.tls_minimum]
        context.set_ciphers(CIPHERS)
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        # a client that closes without close_notify still gets its response
        context.options |= ssl.OP_IGNORE_UNEXPECTED_EOF
        load_certificate(context, settings.tls_certificate, settings.tls_key)
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
    except OSError as exc:  # includes ssl.SSLError
        raise TsdError(f"{name}: {exc.strerror or exc}") from exc


def _check_revocations(name: str) -> None:
    """Raise TsdError if a file contains anything but revocation lists: OpenSSL would trust a certificate in it as a
    CA."""
    with open(name, "rb") as file:
        pem = file.read()
    if pem.count(BEGIN) != pem.count(BEGIN_CRL) or BEGIN_CRL not in pem:
        raise TsdError(f"{name}: tsd.tls.client_crl wants revocation lists in PEM form, and nothing else")


def tls_files(settings: AccessSettings) -> dict[str, str]:
    """Return the files of the settings by their keys."""
    named = {
        "tsd.tls.certificate": settings.tls_certificate,
        "tsd.tls.key": settings.tls_key,
        "tsd.tls.client_ca": settings.tls_client_ca,
        "tsd.tls.client_crl": settings.tls_client_crl,
    }
    return {key: name for key, name in named.items() if name}


def _file_states(files: list[str]) -> list[FileState]:
    return [file_state(name) for name in files]


async def close_notify(stream: Encrypted) -> None:
    """Send close_notify, so that the client can distinguish the end from a truncation."""
    with trio.move_on_after(CLOSE_TIMEOUT_S), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.unwrap()


def release(stream: Encrypted) -> None:
    """Drop what the stream of an ended connection holds. trio's stream references itself: OpenSSL's memory would be
    kept until Python's cycle collector finds it, which counts objects and not bytes."""
    vars(stream).clear()


def socket_of(stream: trio.abc.Stream) -> trio.SocketStream | None:
    """Return the TCP stream below an encrypted or plain stream."""
    below = stream.transport_stream if isinstance(stream, trio.SSLStream) else stream
    return below if isinstance(below, trio.SocketStream) else None


def has_disconnected(stream: trio.SocketStream) -> bool:
    """Return whether the client has closed its side, even if there is unread input."""
    return stream.getsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_INFO, 1)[0] == CLOSE_WAIT
