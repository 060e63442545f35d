"""HTTP/1.1 and 1.0 on the telnet port: bytes → requests, responses → bytes, one connection at a time.

h11 knows the protocol; this decides what may be asked of us: how long a request may take to come, how large it may be,
and what all bodies together may hold. A client that hangs up ends what only it wanted to know.
"""

import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple

import h11
import trio

from tsd.doors import compression, pages
from tsd.doors.bodies import LEAST_RATE, Claim, Room, as_utf8, too_large, unpacked
from tsd.doors.dispatch import LEGACY_JSON, READS, Dispatcher
from tsd.doors.exchange import HTML, JSON, Request, Response
from tsd.doors.parts import ended
from tsd.doors.replies import Unread
from tsd.doors.safety import safe_headers
from tsd.doors.signin import PATIENCE_S
from tsd.doors.tally import Tally
from tsd.doors.target import Target, read_target
from tsd.doors.tls import has_hung_up, socket_of
from tsd.doors.visitor import Visitor
from tsd.errors import Refused

MAX_REQUEST = 64 << 10  # of a request's line and headers
UNCHUNKED_BYTES = 8192  # OpenTSDB's bound where `tsd.http.request.enable_chunked` is off
PIECE_BYTES = 64 << 10  # sent at once: a client has shown that it reads when it has taken one
TURN_CHUNKS = 100  # of one body, before others get their turn
HEADER_COST = 250  # bytes of memory that a header takes beside its text
CHUNK_BYTES = 64 << 10  # claimed at once for a body of unknown length
HUNG_UP_S = 2  # how long a question is still worked on after its client has closed its side: some only half
BAD_REQUEST, TIMED_OUT = 400, 408
BODILESS = (204, 304)
_REQUEST_LINE = re.compile(rb"[A-Z]+ [^ \r\n]+ HTTP/1\.[01]\r?")
_NO_REQUEST_LINE = ("illegal request line", "no request line", "unsupported HTTP version")
_REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}

TOO_SLOW = Refused(TIMED_OUT, "Request Timeout", "The request did not come whole in time")
UNCHUNKED = Response(BAD_REQUEST, pages.bad_request("Chunked request not supported."), HTML)  # even under /api

Receive = Callable[[], Awaitable[bytes]]


class Bounds(NamedTuple):
    """What a request may cost."""

    body: int  # bytes, compressed or not
    patience_s: float  # for a request to come, from its first byte to its last, and for a client to take what is sent
    chunked: bool = True  # False: small bodies only, and of known length
    hsts_s: int = 0  # how long a browser is to speak TLS only with this host; 0: it is not told


class _Gone(Exception):
    """The client has gone, or sends no HTTP: there is nobody to answer."""


class _Unchunked(Exception):
    """A body that is larger than is taken, or of unknown length, where `tsd.http.request.enable_chunked` is off."""


class WebSession:
    """One connection, from its first byte to its end."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        dispatcher: Dispatcher,
        bounds: Bounds,
        room: Room,
        tally: Tally,
        visitor: Visitor,
    ) -> None:
        self._stream = stream
        self._dispatcher = dispatcher
        self._bounds = bounds
        self._room = room
        self._tally = tally
        self._visitor = visitor
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST)
        self._deadline = math.inf  # of the request that is on its way; none is while nothing of it has come
        self._head_bytes = 0  # memory of that request's head, while its body comes
        self._is_head = False
        self._is_known = False  # whether who asked last may do anything here

    async def run(self, first: bytes, receive: Receive) -> None:
        """Serve requests until one of both wants no more. What is no HTTP is hung up on without a byte, as OpenTSDB
        does."""
        self._receive = receive
        try:
            first = await self._first_line(first)
            if _REQUEST_LINE.fullmatch(first.partition(b"\n")[0]) is None:
                return
            self._http.receive_data(first)
            while await self._serve_one():
                self._http.start_next_cycle()
                self._deadline = math.inf
        except _Gone:
            pass

    async def _first_line(self, first: bytes) -> bytes:
        """What comes, up to the end of the first line, if it has one."""
        try:
            while b"\n" not in first and len(first) < MAX_REQUEST:
                self._visitor.holds(len(first))
                if not (more := await self._within_patience(self._receive)):
                    break
                first += more
        except trio.TooSlowError:
            await self._send_last(TOO_SLOW)
        return first

    async def _serve_one(self) -> bool:
        """Serve one request; whether another may follow."""
        self._is_head = False
        try:
            event = await self._next_event()
            if not isinstance(event, h11.Request):
                return False
            if event.method == b"CONNECT":  # an answer of 200 would make a tunnel of the connection
                await self._send_last(Refused(405, "Method not allowed", "The HTTP method [CONNECT] is not permitted"))
            self._is_head = event.method == b"HEAD"
            await self._answer(event)
        except h11.RemoteProtocolError as error:
            if error.error_status_hint != BAD_REQUEST or str(error).startswith(_NO_REQUEST_LINE):
                return False
            await self._send_last(Refused(BAD_REQUEST, "Bad request", str(error)))
        except trio.TooSlowError:
            await self._send_last(TOO_SLOW)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _answer(self, head: h11.Request) -> None:
        headers = _read_headers(head)
        target: Target | None = None
        began = trio.current_time()
        self._tally.requests += 1
        try:
            sender = self._dispatcher.sender(headers, self._visitor)
        except Refused as error:
            await self._send(self._dispatcher.refuse(error), headers, last=True)
            return
        self._is_known = bool(sender.principal.roles)
        async with self._room.claim(sender.at_address.name) as claim:
            try:
                target = read_target(head.target.decode("ascii"))
                visitor = await self._dispatcher.admit(head.method.decode("ascii"), target, headers, sender)
                self._is_known = bool(visitor.principal.roles)
                body = await self._read_body(headers, claim)
            except (Refused, _Unchunked) as error:
                response = UNCHUNKED if isinstance(error, _Unchunked) else self._dispatcher.refuse(error, target)
                await self._send(response, headers, last=not self._has_come_whole())
                return
            request = Request(
                head.method.decode("ascii"),
                target.path,
                target.segments,
                target.params,
                headers,
                body,
                visitor.peer,
                target.is_api,
                target.split,
                visitor,
            )
            if target.key in READS:
                response = await self._answered_while_heard(request, target)
            else:
                response = await self._dispatcher.answer(request, target)
            padded = request.has("jsonp") and response.content_type in (JSON, LEGACY_JSON)
            del request, body  # who takes the answer slowly keeps no room from others
        await self._send(response, headers, last=not (self._is_known or self._has_come_whole()), padded=padded)
        self._tally.note(target.key, response.status, (trio.current_time() - began) * 1000)

    # ---- what comes

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                await self._send_bytes(self._http.send(go_on) or b"")
            unread = len(self._http.trailing_data[0])
            idle = self._http.their_state is h11.IDLE and not unread
            self._visitor.holds(self._head_bytes + unread)
            data = await (self._next_request() if idle else self._within_patience(self._receive))
            if not data:
                raise _Gone
            self._http.receive_data(data)
        return event

    async def _next_request(self) -> bytes:
        """The first of the next request, however long that takes; who may do nothing here is not waited for long, and
        then has gone. A proxy's next request may be anybody's."""
        patient = self._is_known or self._dispatcher.serves_others(self._visitor)
        with trio.move_on_after(math.inf if patient else PATIENCE_S):
            return await self._receive()
        return b""

    async def _within_patience(self, receive: Receive) -> bytes:
        """What comes next of a request that has begun. Raises TooSlowError once it takes too long as a whole."""
        with trio.fail_at(self._begin()):
            data = await receive()
        self._deadline += len(data) / LEAST_RATE  # so much longer than `patience_s` a large body may take
        return data

    def _begin(self) -> float:
        """The deadline of the request that is on its way."""
        if self._deadline == math.inf:
            self._deadline = trio.current_time() + self._bounds.patience_s
        return self._deadline

    async def _read_body(self, headers: Mapping[str, str], claim: Claim) -> bytes:
        """The body, uncompressed and in UTF-8. Raises Refused, TooSlowError. Who may do nothing here is answered
        without it, as far as there is an answer: it would only keep the room from others."""
        _check_lengths(headers)
        if not self._is_known:
            return b""
        self._head_bytes = sum(len(name) + len(value) + HEADER_COST for name, value in headers.items())
        self._visitor.holds(self._head_bytes)
        try:
            await self._claim_body(headers, claim)
            with claim.receiving():
                found = await self._receive_body(claim)
        finally:
            self._head_bytes = 0
            self._visitor.holds(0)
        if not found:
            return b""
        body = bytes(found)
        del found
        body = await unpacked(body, headers.get("content-encoding", ""), self._bounds.body, claim)
        return await as_utf8(body, headers.get("content-type", ""), self._bounds.body)

    async def _receive_body(self, claim: Claim) -> bytearray:
        """The body as it comes."""
        found = bytearray()  # and no list: a client may make its chunks as small as it likes
        chunks = 0
        while not isinstance(event := await self._next_event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise _Gone
            found += event.data
            if len(found) > self._bounds.body:
                raise too_large(self._bounds.body)
            if len(found) > claim.taken:
                claim.grow(len(found) + CHUNK_BYTES)
            claim.got(len(found))
            chunks += 1
            if chunks % TURN_CHUNKS == 0:
                await trio.lowlevel.checkpoint()
        return found

    async def _claim_body(self, headers: Mapping[str, str], claim: Claim) -> None:
        """Find room for what is announced, before it is sent."""
        length = int(headers.get("content-length") or 0)
        if not self._bounds.chunked and (
            length > UNCHUNKED_BYTES or "transfer-encoding" in headers or "expect" in headers
        ):
            raise _Unchunked
        if length > self._bounds.body:
            raise too_large(self._bounds.body)
        if length and not claim.take_now(length):
            with trio.fail_at(self._begin()):
                await claim.take(length)

    def _has_come_whole(self) -> bool:
        """Whether nothing more belongs to this request: then another may follow it. What is there already is passed
        over."""
        while self._http.their_state is h11.SEND_BODY and isinstance(self._http.next_event(), h11.Data):
            pass
        return self._http.their_state is h11.DONE

    # ---- what is answered

    async def _answered_while_heard(self, request: Request, target: Target) -> Response:
        """The response to a question; raises _Gone where the client goes away before it is known."""
        found: list[Response] = []
        async with trio.open_nursery() as nursery:

            async def answer() -> None:
                found.append(await self._dispatcher.answer(request, target))
                nursery.cancel_scope.cancel()

            nursery.start_soon(answer)
            nursery.start_soon(self._watch, nursery.cancel_scope)
        if not found:
            self._tally.hung_up += 1
            raise _Gone
        return found[0]

    async def _watch(self, question: trio.CancelScope) -> None:
        """Cancel a question once its client has hung up. Who sends more instead is not watched any further."""
        stream = socket_of(self._stream)
        if stream is None:
            return
        sock = stream.socket
        try:
            await trio.lowlevel.wait_readable(sock)
            sent_more = await sock.recv(1, trio.socket.MSG_PEEK)
            if sent_more and not self._visitor.secured:
                return
            await trio.sleep(HUNG_UP_S)
            if sent_more and not has_hung_up(stream):  # TLS says goodbye before it hangs up
                return
        except OSError:  # reset
            pass
        question.cancel()

    async def _send_last(self, error: Refused) -> None:
        """Answer what is no whole request, and end. Raises _Gone."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            await self._send(self._dispatcher.refuse(error), {}, last=True)
        raise _Gone

    async def _send(
        self, response: Response, asked: Mapping[str, str], *, last: bool = False, padded: bool = False
    ) -> None:
        headers = list(response.headers)
        if response.content_type is not None:
            headers.append(("Content-Type", response.content_type))
            hsts_s = self._bounds.hsts_s if self._visitor.secured else 0
            headers += safe_headers(response.headers, script=padded, hsts_s=hsts_s)
        if last:
            headers.append(("Connection", "close"))
        coding = compression.chosen(asked.get("accept-encoding"))
        if any(name.lower() == "content-encoding" for name, _ in response.headers):
            coding = None
        if isinstance(response.body, bytes):
            await self._send_whole(response.status, response.body, headers, coding)
        else:
            await self._send_parts(response.status, response.body, headers, coding)

    async def _send_whole(self, status: int, body: bytes, headers: list[tuple[str, str]], coding: str | None) -> None:
        if coding is not None and len(body) >= compression.LEAST_BYTES:
            body = await compression.compressed(body, coding)
            headers += [("Content-Encoding", coding), ("Vary", "Accept-Encoding")]
        if status not in BODILESS:
            headers.append(("Content-Length", str(len(body))))
        pieces = self._http.send_with_data_passthrough(_head(status, headers)) or []
        if body and not self._is_head and status not in BODILESS:
            pieces += self._http.send_with_data_passthrough(h11.Data(data=body)) or []
        pieces += self._http.send_with_data_passthrough(h11.EndOfMessage()) or []
        if len(body) < PIECE_BYTES:
            await self._send_bytes(b"".join(pieces))
        else:
            for piece in pieces:
                await self._send_bytes(piece)

    async def _send_parts(
        self, status: int, parts: AsyncIterator[bytes], headers: list[tuple[str, str]], coding: str | None
    ) -> None:
        """A body as it comes. What goes wrong now can only end the connection, in the middle of the answer."""
        if coding is not None:
            parts = compression.compressed_parts(parts, coding)
            headers += [("Content-Encoding", coding), ("Vary", "Accept-Encoding")]
        async with ended(parts):
            await self._send_bytes(self._http.send(_head(status, headers)) or b"")
            try:
                async for part in parts:
                    if self._is_head:
                        break
                    await self._send_bytes(self._http.send(h11.Data(data=part)) or b"")
            except Refused as error:  # too late to tell
                raise _Gone from error
        await self._send_bytes(self._http.send(h11.EndOfMessage()) or b"")

    async def _send_bytes(self, data: bytes) -> None:
        """Send, piece by piece. Raises Unread for a client that takes none for too long."""
        for at in range(0, len(data), PIECE_BYTES):
            with trio.move_on_after(self._bounds.patience_s) as scope:
                await self._stream.send_all(memoryview(data)[at : at + PIECE_BYTES])
            if scope.cancelled_caught:
                raise Unread


def _read_headers(head: h11.Request) -> dict[str, str]:
    """Headers by name, in lower case; of several of one name all, with commas between."""
    found: dict[str, list[str]] = {}
    for name, value in head.headers:
        found.setdefault(name.decode("ascii"), []).append(value.decode("latin-1"))
    return {name: ", ".join(values) for name, values in found.items()}


def _check_lengths(headers: Mapping[str, str]) -> None:
    """Raise RemoteProtocolError for a length that is announced in two ways: a proxy that goes by the other one would
    take a part of the body for a request."""
    if "content-length" in headers and "transfer-encoding" in headers:
        raise h11.RemoteProtocolError("A request has both Content-Length and Transfer-Encoding")


def _head(status: int, headers: list[tuple[str, str]]) -> h11.Response:
    written = [(name.encode("ascii"), value.encode("latin-1", "replace")) for name, value in headers]
    return h11.Response(status_code=status, headers=written, reason=_REASONS.get(status, b""))
