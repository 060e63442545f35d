"""`/api/annotation`, `/api/annotations` and their bulk forms: annotations on series, or global ones
(docs/compat/wire.md §12.7)."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import trio

from tsd.api.messages import (
    DONE,
    UNCHANGED,
    answer,
    is_true,
    meant_method,
    members_in_url,
    missing_part,
    not_allowed,
    number_in,
    object_of,
    objects_of,
    required,
    text_in,
    tsuids_in,
    words_of_all,
)
from tsd.api.uid_meta import custom_in
from tsd.codec.metadata import Annotation
from tsd.codec.putline import FIRST_MS, LAST_MS, storable
from tsd.errors import BadLine, BadQuery, Refused
from tsd.query.parse.times import read_time
from tsd.query.serialize import show_annotation
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.tables.catalog import AnnotationChange, Annotations, SeriesCatalog

END_BEFORE_START = "The end timestamp cannot be less than the start timestamp"
MAX_ANNOTATIONS = 10_000  # of one bulk request
STEP_ANNOTATIONS = 250  # between two checkpoints
MAX_SERIES = 1000  # of one bulk deletion
NO_START = "The start timestamp has not been set"
NO_START_IN_URL = "Missing start time"
METHODS = ("GET", "POST", "PUT", "DELETE")
IN_URL = {name: name for name in ("tsuid", "description", "notes")}


def routes(annotations: Annotations | None, catalog: SeriesCatalog, now_ms: Callable[[], int]) -> dict[str, Endpoint]:
    """Return the endpoints."""
    if annotations is None:
        return dict.fromkeys(("api/annotation", "api/annotations"), missing_part("annotations"))
    pages = AnnotationPages(annotations, catalog, now_ms)

    async def one(request: Request) -> Response:
        return await (pages.bulk(request) if request.segments[1:2] == ("bulk",) else pages.one(request))

    async def many(request: Request) -> Response:
        if meant_method(request) == "GET" and request.segments[1:2] != ("bulk",):
            return await pages.listed(request)
        return await one(request)

    return {"api/annotation": one, "api/annotations": many}


class AnnotationPages:
    """Handlers of the endpoints."""

    def __init__(self, annotations: Annotations, catalog: SeriesCatalog, now_ms: Callable[[], int]) -> None:
        self._annotations = annotations
        self._catalog = catalog
        self._now_ms = now_ms

    async def one(self, request: Request) -> Response:
        """Show, store or delete one annotation. Raise Refused, StoreError, CorruptRow."""
        method, members = meant_method(request), self._members(request)
        if method not in METHODS:
            raise not_allowed(method)
        if method in ("POST", "PUT"):
            sent = self._sent(members)
            if not sent.fields:
                return UNCHANGED
            return answer(show_annotation(await self._annotations.put(*_change(sent, method))))
        start_time = number_in(members, "startTime")
        if start_time < 1:
            raise Refused(400, NO_START_IN_URL)
        series = self._series(text_in(members, "tsuid"))
        if method == "DELETE":
            await self._annotations.delete(start_time, series)
            return DONE
        found = await self._annotations.get(start_time, series)
        if found is None:
            raise Refused(404, "Unable to locate annotation in storage")
        return answer(show_annotation(found))

    async def listed(self, request: Request) -> Response:
        """Return the global annotations of a time range."""
        if request.body:
            members = object_of(request)
            start_ms, end_ms = _ms(number_in(members, "startTime")), _ms(number_in(members, "endTime"))
        else:
            start_ms = self._start_ms(request)
            end_ms = self._time_ms(request.param("end_time") or "")
        if start_ms is None:
            raise Refused(400, NO_START_IN_URL)
        found = await self._annotations.global_between(start_ms, self._now_ms() if end_ms is None else end_ms)
        encoded = []
        for number, one in enumerate(found):
            if not number % STEP_ANNOTATIONS:
                await trio.lowlevel.checkpoint()
            encoded.append(_encoded(one))
        return _joined(encoded)

    async def bulk(self, request: Request) -> Response:
        """Store or delete several annotations. Raise Refused, StoreError, CorruptRow."""
        method = meant_method(request)
        if method == "DELETE":
            return await self._delete_many(request)
        if method not in ("POST", "PUT"):
            raise not_allowed(method)
        listed = deque(objects_of(request))
        if len(listed) > MAX_ANNOTATIONS:
            raise Refused(413, f"More than {MAX_ANNOTATIONS} annotations")
        changes: deque[AnnotationChange] = deque()  # all, before the first write
        while listed:  # what is used is freed step by step: thousands of objects at once would hold the event loop
            if not len(listed) % STEP_ANNOTATIONS:
                await trio.lowlevel.checkpoint()
            if (sent := self._sent(listed.popleft(), in_bulk=True)).fields:
                changes.append(_change(sent, method))
        stored = await self._annotations.put_many(changes)
        encoded = []
        while stored:
            if not len(stored) % STEP_ANNOTATIONS:
                await trio.lowlevel.checkpoint()
            encoded.append(_encoded(stored.popleft()))
        return _joined(encoded)

    async def _delete_many(self, request: Request) -> Response:
        if request.body:
            members = object_of(request)
            tsuids, global_ = tsuids_in(members), is_true(members.get("global"))
            start, end = text_in(members, "startTime"), text_in(members, "endTime")
        else:
            required(request, "start_time")
            tsuids = words_of_all(request.params.get("tsuids", ()))
            global_ = request.param("global") == "" or is_true(request.param("global"))
            start, end = request.param("start_time") or "", request.param("end_time") or ""
        if not start:
            raise Refused(400, "Missing the start time value")
        if not tsuids and not global_:
            raise Refused(400, "Missing the TSUIDs or global annotations flag")
        if len(tsuids) > MAX_SERIES:
            raise Refused(413, f"More than {MAX_SERIES} TSUIDs")
        try:
            start_ms = read_time(start, self._now_ms())
            end_ms = read_time(end, self._now_ms()) if end else self._now_ms()
        except BadQuery as error:
            raise Refused(400, error.message, error.message) from error
        if end_ms < start_ms:
            raise Refused(400, END_BEFORE_START, END_BEFORE_START)
        series = [self._series(tsuid) for tsuid in tsuids]
        deleted = await self._annotations.delete_between(start_ms, end_ms, series, global_=global_)
        return answer(
            {
                "tsuids": tsuids or None,
                "global": global_,
                "startTime": start_ms,
                "endTime": end_ms,
                "totalDeleted": deleted,
            }
        )

    def _members(self, request: Request) -> Mapping[str, Any]:
        """Return the members of the body. Without a body: the parameters, which allow times in any form."""
        if request.body:
            return object_of(request)
        found = members_in_url(request, IN_URL)
        found["startTime"] = self._start_ms(request) // 1000
        if (end_ms := self._time_ms(request.param("end_time") or "")) is not None:
            found["endTime"] = end_ms // 1000
        return found

    def _sent(self, members: Mapping[str, Any], *, in_bulk: bool = False) -> AnnotationChange:
        """Return an annotation to be stored, with the fields that the client set. Raise Refused."""
        tsuid = text_in(members, "tsuid")
        start_time, end_time = number_in(members, "startTime"), number_in(members, "endTime")
        changed: dict[str, Any] = {name: text_in(members, name) for name in ("description", "notes")}
        changed = {name: text for name, text in changed.items() if text}
        if end_time:
            changed["end_time"] = end_time
        if members.get("custom") is not None:
            changed["custom"] = custom_in(members)
        if start_time < 1:
            description = changed.get("description", "")
            details = f"Annotation error: TSUID: {tsuid} Start: {start_time}  Description: {description}"
            raise Refused(400, NO_START, details if in_bulk else NO_START)
        if start_time > LAST_MS or (start_time >= FIRST_MS and not storable(start_time)):
            raise Refused(400, f"Invalid timestamp: {start_time}")
        annotation = Annotation(start_time, tsuid=tsuid, **changed)
        return AnnotationChange(annotation, self._series(tsuid), frozenset(changed))

    def _series(self, text: str) -> bytes:
        """Return the series of an annotation, empty for a global one. Raise Refused."""
        if not text:
            return b""
        try:
            return self._catalog.parse_series(text)
        except BadLine as error:
            raise Refused(400, str(error)) from error

    def _start_ms(self, request: Request) -> int:
        """Return the parameter `start_time` in Unix ms. Raise Refused."""
        if (start_ms := self._time_ms(request.param("start_time") or "")) is None:
            raise Refused(400, NO_START_IN_URL)
        return start_ms

    def _time_ms(self, text: str) -> int | None:
        """Return a time in any form in Unix ms; None for an empty text. Raise Refused with status 500, as in OpenTSDB
        except for bulk deletions."""
        if not text:
            return None
        try:
            return read_time(text, self._now_ms())
        except BadQuery as error:
            raise Refused(500, error.message) from error


def _change(sent: AnnotationChange, method: str) -> AnnotationChange:
    """Return the change of a request: POST changes the fields that the client set, PUT all."""
    return sent._replace(fields=None) if method == "PUT" else sent


def _encoded(note: Annotation) -> bytes:
    return msgspec.json.encode(show_annotation(note))


def _joined(encoded: Iterable[bytes]) -> Response:
    """Return a response with an array of encoded annotations."""
    return Response(200, b"[" + b",".join(encoded) + b"]")


def _ms(time: int) -> int | None:
    """Return a time in seconds or ms as ms; None for 0 or less.

    >>> _ms(1356998400), _ms(1356998400500), _ms(0)
    (1356998400000, 1356998400500, None)
    """
    if time < 1:
        return None
    return time if time >= FIRST_MS else time * 1000
