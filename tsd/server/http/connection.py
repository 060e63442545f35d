"""One HTTP/1.1 or 1.0 connection: parse requests, answer them, send responses.

h11 implements the protocol, except for plain requests and their responses (`tsd.server.http.plain`). This module
bounds a request: its duration, its size, and the memory of all bodies. A client that disconnects cancels its query.
"""

import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import h11
import trio

from tsd.errors import Refused
from tsd.lazy import LazyLogger
from tsd.server.http import bodies, pages
from tsd.server.http.bodies import (
    MIN_BYTES_PER_S,
    MemoryBudget,
    Reservation,
    content_codings,
    decoded,
    too_large,
)
from tsd.server.http.disconnects import PROBE_S, DisconnectWatch, probe_until_reset
from tsd.server.http.heads import (
    BAD_REQUEST,
    MAX_HEAD_BYTES,
    REQUEST_LINE,
    after_line_ends,
    check_line,
    check_unread,
    read_head,
    read_origin,
    refusal_of,
    response_head,
)
from tsd.server.http.messages import HTML, JSON, Request, Response, Target, closing, parse_target
from tsd.server.http.plain import PlainRequest, read_plain_request, response_fields
from tsd.server.http.router import LEGACY_JSON, Router
from tsd.server.http.security import Decision, security_headers, usual_fields
from tsd.server.http.stats import PUTS, RequestStats
from tsd.server.peer import Peer
from tsd.server.replies import SlowConsumer
from tsd.server.telnet import LOGIN_TIMEOUT_S
from tsd.server.tls import has_disconnected, socket_of

log = LazyLogger(__name__)

REPEATED_BYTES = 1024  # the longest request that is kept to recognize the same bytes
UNCHUNKED_BYTES = 8192  # OpenTSDB's limit of a body if `tsd.http.request.enable_chunked` is off
SEND_BYTES = 64 << 10  # of a response that a client must read before the timeout
WRITE_BYTES = 256 << 10  # of a response that are copied to the kernel in one step, if it has room
CHUNKS_PER_CHECKPOINT = 100  # of one request body
HEADER_OVERHEAD = 250  # bytes of memory that a header takes in addition to its text
RESERVE_BYTES = 64 << 10  # reserved at once for a body of unknown length
PATIENT_S = 1  # a client that sends points no more often does not notice a short wait
TIMED_OUT = 408
BODILESS = (204, 304)
_BODY_HEADERS = frozenset(("content-length", "transfer-encoding", "expect"))

TOO_SLOW = Refused(TIMED_OUT, "Request Timeout", "The request was not complete in time")
# An HTML page even under /api, as in OpenTSDB.
NOT_CHUNKED = Response(BAD_REQUEST, pages.bad_request("Chunked request not supported."), HTML)

Receive = Callable[[], Awaitable[bytes]]


class RequestLimits(NamedTuple):
    """Limits of one request, and the HSTS header of its response."""

    body: int  # bytes, compressed or not
    timeout_s: float  # from a request's first byte to its last, and for the client to read SEND_BYTES of the response
    chunked: bool = True  # False: small bodies of known length only
    hsts_s: int = 0  # max-age of HSTS; 0: no such header


class HttpPort(NamedTuple):
    """What all HTTP connections of a port share."""

    router: Router
    limits: RequestLimits
    budget: MemoryBudget  # for the bodies of all requests
    stats: RequestStats


class _ConnectionEnded(Exception):
    """The client has disconnected or does not speak HTTP: no response can be sent."""


class _ChunkedDisabled(Refused):
    """A body of unknown length, or a large one, while `tsd.http.request.enable_chunked` is off."""


class HttpConnection:
    """One connection, from its first byte to its end."""

    def __init__(self, port: HttpPort, stream: trio.abc.Stream, peer: Peer) -> None:
        self._router, self._limits, self._budget, self._stats = port
        self._stream = stream
        self._peer = peer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._input = b""  # received and not given to h11
        self._at = 0  # where the next request starts in it
        self._plain: PlainRequest | None = None  # the current request, unless h11 has it
        # A short request without a body that came alone, and its bytes.
        self._repeated: tuple[bytes, PlainRequest | None] = b"", None
        self._known_fields: tuple[bytes, Mapping[str, str]] = b"", {}  # headers of the last plain request
        self._headers: Mapping[str, str] = {}  # of the current request, once they are known
        self._unread = b""  # the beginning of its head until then
        self._deadline = math.inf  # of the current request; infinite between requests
        self._head_bytes = 0  # memory of the current request's head, while its body is received
        self._is_head_request = False  # the method is HEAD
        self._has_roles = False  # the last sender has any role
        self._answered_s = -math.inf  # the last request: most clients end a new connection after one
        self._watch = DisconnectWatch()

    async def run(self, first: bytes, receive: Receive) -> None:
        """Serve requests until either side ends the connection.

        Input that is not HTTP closes the connection without a response, as OpenTSDB does.
        """
        self._receive = receive
        with suppress(_ConnectionEnded):
            first = await self._first_line(first)
            if REQUEST_LINE.fullmatch(first.partition(b"\n")[0]) is None:
                self._note_not_http()
                return
            self._input = first
            await self._watch.run_with(self._serve_all)

    async def _serve_all(self) -> None:
        while await self._serve_one():
            if self._plain is None and self._http.their_state is h11.DONE:
                self._input, self._at = self._http.trailing_data[0] + self._input[self._at :], 0
                self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
            self._deadline = math.inf

    async def _first_line(self, first: bytes) -> bytes:
        """Return input that contains the whole first line, or all input if that is too long."""
        try:
            while b"\n" not in first and len(first) < MAX_HEAD_BYTES:
                self._peer.report_partial_input(len(first))
                if not (more := await self._receive_in_time()):
                    raise _ConnectionEnded
                first += more
            if b"\n" not in first:
                check_line(first)
        except Refused as error:
            await self._send_last(error)
        except trio.TooSlowError:
            await self._send_last(TOO_SLOW)
        return first

    async def _serve_one(self) -> bool:
        """Serve one request. Return whether another may follow."""
        self._is_head_request = False
        self._headers = {}
        try:
            self._plain = await self._next_plain_request()
            if self._plain is not None:
                method, target, headers = self._plain[:3]
                self._is_head_request = method == "HEAD"
                await self._answer(method, target, headers)
                return self._plain is not None or self._both_done()
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                return False
            if event.method == b"CONNECT":  # a response of 200 would turn the connection into a tunnel
                await self._send_last(Refused(405, "Method not allowed", "The HTTP method [CONNECT] is not permitted"))
            self._is_head_request = event.method == b"HEAD"
            await self._answer(*read_head(event))
        except h11.RemoteProtocolError as error:
            if (refused := refusal_of(error)) is None:
                self._note_not_http()
                return False
            await self._send_last(refused)
        except Refused as error:
            await self._send_last(error)
        except trio.TooSlowError:
            await self._send_last(TOO_SLOW)
        return self._both_done()

    def _note_not_http(self) -> None:
        """Note that the connection is closed because its input is not HTTP, such as lines after a request."""
        self._stats.not_http += 1
        key = "connection.closed not_http"  # many of these must not hide those with other reasons
        log.warning("connection.closed", _limit_key=key, reason="not_http", peer=self._peer.name)

    def _both_done(self) -> bool:
        """Return whether h11 can begin another request."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _answer(self, method: str, text: str, headers: Mapping[str, str]) -> None:
        """Answer a request for the target `text`."""
        began = perf_counter()
        self._stats.requests += 1
        self._headers, self._unread = headers, b""
        try:
            target = parse_target(text)
        except Refused as error:
            await self._send(self._router.refuse_early(error, headers), headers, last=not self._is_complete())
            return
        decision = await self._router.decide(method, target, headers, self._peer)
        self._peer.assign_bytes(decision.sender)
        self._has_roles = decision.sender.principal.roles._value_ != 0  # operators of flags are slow
        if decision.refused is not None:
            refused = self._router.refuse(decision.refused, target, decision.headers)
            await self._send(refused, headers, last=not self._is_complete())
            return
        if self._plain is not None and headers.keys().isdisjoint(_BODY_HEADERS):  # no body, and no memory for it
            response, is_script = await self._respond(method, target, headers, b"", decision)
        else:
            with self._budget.reserve(decision.sender.address_client.name) as reservation:
                try:
                    body = await self._read_body(headers, reservation)
                except Refused as error:
                    log.warning("request.refused", error=error.details or error.message, peer=decision.sender.name)
                    refused = NOT_CHUNKED if isinstance(error, _ChunkedDisabled) else self._router.refuse(error, target)
                    refused = replace(refused, headers=(*refused.headers, *decision.headers))
                    await self._send(refused, headers, last=not self._is_complete())
                    return
                finally:
                    self._peer.assign_bytes(decision.sender)
                response, is_script = await self._respond(method, target, headers, body, decision)
                del body  # a client that reads slowly must not hold the memory of its request
        last = not (self._has_roles or self._is_complete())
        await self._send(response, headers, last=last, is_script=is_script)
        self._stats.record(target.key, response.status, (perf_counter() - began) * 1000)
        since_s, self._answered_s = self._answered_s, trio.current_time()
        is_rare = self._answered_s - since_s >= PATIENT_S
        self._peer.is_patient = is_rare and target.key in PUTS and not self._router.is_http_proxy(self._peer)

    async def _respond(
        self, method: str, target: Target, headers: Mapping[str, str], body: bytes, decision: Decision
    ) -> tuple[Response, bool]:
        """Return the response to an allowed request, and whether it is a script."""
        request = Request(
            method,
            target.path,
            target.segments,
            target.params,
            headers,
            body,
            target.is_api,
            target.split,
            decision.sender,
        )
        if self._router.is_query(method, target):
            self._peer.report_query()
            # Cancelled, with all of the connection, if the client disconnects first.
            self._watch.begin(self._wait_disconnected)
            try:
                response = await self._router.answer(request, target, decision.headers)
            finally:
                await self._watch.end()
        else:
            response = await self._router.answer(request, target, decision.headers)
        return response, request.has("jsonp") and response.content_type in (JSON, LEGACY_JSON)

    # ---- receiving

    async def _next_plain_request(self) -> PlainRequest | None:
        """Return the next request if it is plain. Otherwise h11 gets the input, and None is returned."""
        # Some clients end a body with a line end. Its halves may come in two packets.
        self._at = after_line_ends(self._input, self._at)
        while (begun := self._input[self._at : self._at + 2]) in (b"", b"\r"):
            self._peer.report_partial_input(0)
            self._input, self._at = begun, 0
            if not (received := await self._receive_next_request()):
                raise _ConnectionEnded
            self._input = begun + received
            self._at = after_line_ends(self._input, 0)
        plain = self._read_plain()
        if plain is None:
            self._http.receive_data(self._input[self._at :])
            self._input, self._at = b"", 0
        else:
            self._at = plain.stop
        return plain

    def _read_plain(self) -> PlainRequest | None:
        """Return the next request if it is plain. The same bytes are the same request: clients repeat queries."""
        text, repeated = self._repeated
        if text and not self._at and self._input == text:
            return repeated
        plain = read_plain_request(self._input, self._at, self._known_fields)
        if plain is not None and plain.headers is not self._known_fields[1]:
            self._known_fields = plain.fields, plain.headers
        if plain is not None and not plain.start and plain.stop == len(self._input) <= REPEATED_BYTES:
            self._repeated = (self._input, plain) if not plain.body else (b"", None)
        return plain

    def _pass_to_h11(self) -> None:
        """Let h11 read the current request, if it is plain, and write its response."""
        if (plain := self._plain) is None:
            return
        self._plain = None
        self._http.receive_data(self._input[plain.start : plain.stop])
        while not isinstance(event := self._http.next_event(), h11.EndOfMessage) and event is not h11.NEED_DATA:
            continue

    async def _next_event(self) -> object:
        self._check_head()
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                proceed = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                await self._send_bytes(self._http.send(proceed) or b"")
            unread = len(self._http.trailing_data[0])
            idle = self._http.their_state is h11.IDLE and not unread
            self._peer.report_partial_input(self._head_bytes + unread)
            data = await (self._receive_next_request() if idle else self._receive_in_time())
            if not data:
                raise _ConnectionEnded
            self._http.receive_data(data)
            self._check_head()
        return event

    def _check_head(self) -> None:
        """Raise Refused for a head that h11 should not read."""
        if self._http.their_state is h11.IDLE:
            self._unread = self._http.trailing_data[0]
            check_unread(self._unread)

    async def _receive_next_request(self) -> bytes:
        """Return the first bytes of the next request; b"" if the connection ends or is closed for being idle.

        A client without roles has LOGIN_TIMEOUT_S. A proxy has no timeout: its next request may have another sender.
        """
        if self._has_roles or self._router.is_http_proxy(self._peer):
            return await self._receive()
        with trio.move_on_after(LOGIN_TIMEOUT_S):
            return await self._receive()
        return b""

    async def _receive_in_time(self) -> bytes:
        """Return more bytes of the current request. Raise TooSlowError after its deadline."""
        with trio.fail_at(self._start_deadline()):
            data = await self._receive()
        self._deadline += len(data) / MIN_BYTES_PER_S  # a large body has more time than `timeout_s`
        return data

    def _start_deadline(self) -> float:
        """Return the deadline of the current request."""
        if self._deadline == math.inf:
            self._deadline = trio.current_time() + self._limits.timeout_s
        return self._deadline

    async def _read_body(self, headers: Mapping[str, str], reservation: Reservation) -> bytes:
        """Return the body, decompressed and in UTF-8. Raise Refused, TooSlowError.

        Without roles the body is not read: it would only take memory from other requests.
        """
        if not self._has_roles:
            return b""
        plain = self._plain
        if headers.keys().isdisjoint(_BODY_HEADERS):  # no body, and no memory for it
            if plain is None and not isinstance(await self._next_event(), h11.EndOfMessage):
                raise _ConnectionEnded
            return b""
        if plain is not None and plain.stop <= len(self._input):
            await self._reserve_body(headers, reservation)
            return await decoded(plain.body, headers, self._limits.body, reservation)
        self._head_bytes = sum(len(name) + len(value) + HEADER_OVERHEAD for name, value in headers.items())
        self._peer.report_partial_input(self._head_bytes)
        try:
            await self._reserve_body(headers, reservation)
            with reservation.receiving():
                received = await (self._receive_body if plain is None else self._receive_plain_body)(reservation)
        finally:
            self._head_bytes = 0
            self._peer.report_partial_input(0)
        body = bytes(received)
        del received
        return await decoded(body, headers, self._limits.body, reservation)

    async def _receive_body(self, reservation: Reservation) -> bytearray:
        """Return the body as sent."""
        received = bytearray()  # not a list: a client may send tiny chunks
        chunks = 0
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise _ConnectionEnded
            received += event.data
            if len(received) > self._limits.body:
                raise too_large(self._limits.body)
            if len(received) > reservation.size:
                reservation.grow(len(received) + RESERVE_BYTES)
            reservation.received(len(received))
            chunks += 1
            if chunks % CHUNKS_PER_CHECKPOINT == 0:
                await trio.lowlevel.checkpoint()
        return received

    async def _receive_plain_body(self, reservation: Reservation) -> bytearray:
        """Return the body of a plain request, of which a part is missing."""
        plain = self._plain
        assert plain is not None
        received, size = bytearray(self._input[plain.start :]), plain.stop - plain.start
        head = len(received) - len(plain.body)
        while len(received) < size:
            if not (data := await self._receive_in_time()):
                raise _ConnectionEnded
            received += data
            reservation.received(len(received) - head)
        self._input, self._at = bytes(received), size
        self._plain = plain._replace(body=self._input[head:size], start=0, stop=size)
        return received[head:size]

    async def _reserve_body(self, headers: Mapping[str, str], reservation: Reservation) -> None:
        """Reserve memory for the announced length, before the client sends the body. Raise Refused."""
        length = int(headers.get("content-length") or 0)
        if length or "transfer-encoding" in headers:
            content_codings(headers.get("content-encoding", ""))  # before the body is read
        if not self._limits.chunked and (
            length > UNCHUNKED_BYTES or "transfer-encoding" in headers or "expect" in headers
        ):
            raise _ChunkedDisabled(BAD_REQUEST, "Chunked request not supported.")
        if length > self._limits.body:
            raise too_large(self._limits.body)
        if length and not reservation.take_nowait(length):
            with trio.fail_at(self._start_deadline()):
                await reservation.take(length)

    def _is_complete(self) -> bool:
        """Return whether the request was received completely: then another may follow. Skips received body data, but
        not many tiny chunks: 40,000 of one packet would hold up the event loop."""
        if self._plain is not None:
            if self._plain.stop <= len(self._input):
                return True
            self._pass_to_h11()
        for _ in range(CHUNKS_PER_CHECKPOINT):
            if self._http.their_state is not h11.SEND_BODY or not isinstance(self._http.next_event(), h11.Data):
                break
        return self._http.their_state is h11.DONE

    # ---- answering

    async def _wait_disconnected(self) -> bool:
        """Return True once the client has disconnected; False if it sends more input."""
        stream = socket_of(self._stream)
        if stream is None:
            return False
        sock = stream.socket
        try:
            await trio.lowlevel.wait_readable(sock)
            sent_more = await sock.recv(1, trio.socket.MSG_PEEK)
            if sent_more and not self._peer.is_encrypted:
                return False
            await trio.sleep(PROBE_S)
            if self._peer.is_encrypted:
                if sent_more and not has_disconnected(stream):  # TLS sends close_notify first
                    return False
            else:
                await probe_until_reset(sock, self._probe)
        except (OSError, trio.BrokenResourceError):  # reset
            pass
        self._stats.client_disconnects += 1
        return True

    async def _probe(self) -> None:
        """Send an interim response. HTTP/1.0 has none: there the kernel's keep-alive finds the closed socket after a
        minute."""
        self._pass_to_h11()
        if self._http.their_http_version == b"1.1":
            proceed = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            await self._send_bytes(self._http.send(proceed) or b"")

    async def _send_last(self, error: Refused) -> None:
        """Send an error for an incomplete request. Raise _ConnectionEnded."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            # Without details: those of h11 quote a header line, which may be a secret.
            log.warning("request.refused", error=error.message, peer=self._peer.name)
            headers = self._headers or read_origin(self._unread)
            await self._send(self._router.refuse_early(error, headers), {}, last=True)
        raise _ConnectionEnded

    async def _send(
        self, response: Response, request_headers: Mapping[str, str], *, last: bool = False, is_script: bool = False
    ) -> None:
        """Send a response, compressed if the request's headers allow it."""
        self._stats.count_status(response.status)
        if last or not isinstance(response.body, bytes):
            self._pass_to_h11()
        hsts_s = self._limits.hsts_s if self._peer.is_encrypted else 0
        coding = None
        if not isinstance(response.body, bytes) or len(response.body) >= bodies.MIN_COMPRESSED_BYTES:
            coding = bodies.negotiated_coding(request_headers.get("accept-encoding"))
        if self._plain is not None and coding is None and not (response.headers or is_script):
            assert isinstance(response.body, bytes)
            if (fields := usual_fields(response.status, response.content_type, hsts_s)) is not None:
                await self._send_plain(response.status, fields, response.body)
                return
        headers = list(response.headers)
        if response.content_type is not None:
            headers.append(("Content-Type", response.content_type))
            headers += security_headers(response.headers, script=is_script, hsts_s=hsts_s)
        if last:
            headers.append(("Connection", "close"))
        if coding is not None and any(name.lower() == "content-encoding" for name, _ in response.headers):
            coding = None
        if isinstance(response.body, bytes):
            await self._send_whole(response.status, response.body, headers, coding)
        else:
            await self._send_chunks(response.status, response.body, headers, coding)

    async def _send_whole(self, status: int, body: bytes, headers: list[tuple[str, str]], coding: str | None) -> None:
        if coding is not None:
            body = await bodies.Compressor(coding).compress_all(body)
            headers += [("Content-Encoding", coding), ("Vary", "Accept-Encoding")]
        if self._plain is not None and (fields := response_fields(status, tuple(headers))) is not None:
            await self._send_plain(status, fields, body)
            return
        self._pass_to_h11()
        if status not in BODILESS:
            headers.append(("Content-Length", str(len(body))))
        head = b"".join(self._http.send_with_data_passthrough(response_head(status, headers)) or [])
        pieces: list[bytes] = []
        if body and not self._is_head_request and status not in BODILESS:
            pieces += self._http.send_with_data_passthrough(h11.Data(data=body)) or []
        pieces += self._http.send_with_data_passthrough(h11.EndOfMessage()) or []
        if len(body) < SEND_BYTES:
            await self._send_bytes(b"".join((head, *pieces)))
        else:
            for piece in (head, *pieces):
                await self._send_bytes(piece)

    async def _send_plain(self, status: int, fields: bytes, body: bytes) -> None:
        """Send the response to a plain request, after which the connection stays open. `fields` are its status line and
        headers without its length."""
        assert self._plain is not None
        length = b"" if status in BODILESS else b"Content-Length: %d\r\n" % len(body)
        head = b"%b%b\r\n" % (fields, length)
        if self._plain.body:  # a client that reads slowly must not hold it, nor the input
            self._plain = self._plain._replace(body=b"")
        if self._at == len(self._input):
            self._input, self._at = b"", 0
        if self._is_head_request or not length:
            body = b""
        if len(body) < WRITE_BYTES:
            data = head + body
            data = data[self._sent_at_once(data) :]
            if data:
                await self._send_bytes(data)
            elif self._input:  # else other tasks can run while the next request is awaited
                await trio.lowlevel.checkpoint()
        else:
            await self._send_bytes(head)
            await self._send_bytes(body)

    async def _send_chunks(
        self, status: int, chunks: AsyncIterator[bytes], headers: list[tuple[str, str]], coding: str | None
    ) -> None:
        """Send a body as it is produced. An error ends the connection in the middle of the response."""
        compressor = None
        if coding is not None:
            compressor = bodies.Compressor(coding)
            headers += [("Content-Encoding", coding), ("Vary", "Accept-Encoding")]
        async with closing(chunks):
            await self._send_bytes(self._http.send(response_head(status, headers)) or b"")
            try:
                async for chunk in chunks:
                    if self._is_head_request:
                        break
                    await self._send_chunk(chunk if compressor is None else await compressor.compress(chunk))
            except Refused as error:  # the status is sent already
                raise _ConnectionEnded from error
        if compressor is not None and not self._is_head_request:
            await self._send_chunk(compressor.flush())
        await self._send_bytes(self._http.send(h11.EndOfMessage()) or b"")

    async def _send_chunk(self, data: bytes) -> None:
        if data:
            await self._send_bytes(self._http.send(h11.Data(data=data)) or b"")

    async def _send_bytes(self, data: bytes) -> None:
        """Send data in parts. Raise SlowConsumer if the client does not read a part before the timeout."""
        left = memoryview(data)
        left = left[self._sent_at_once(left[:WRITE_BYTES]) :]
        if not left:
            await trio.lowlevel.checkpoint()
            return
        for at in range(0, len(left), SEND_BYTES):
            with trio.move_on_after(self._limits.timeout_s) as scope:
                await self._stream.send_all(left[at : at + SEND_BYTES])
            if scope.cancelled_caught:
                raise SlowConsumer

    def _sent_at_once(self, data: bytes | memoryview) -> int:
        """Return how many bytes the kernel takes without a wait, as almost always all of a small response."""
        if not isinstance(self._stream, trio.SocketStream):
            return 0
        try:
            return os.write(self._stream.socket.fileno(), data)
        except OSError:  # full, or broken: `send_all` waits or says so
            return 0
