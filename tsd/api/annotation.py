"""`/api/annotation`, `/api/annotations` and their bulk forms: notes on series and on everything (wire.md §12.7)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tsd.api.messages import (
    DONE,
    UNCHANGED,
    answer,
    is_true,
    meant_method,
    members_in_url,
    not_allowed,
    number_in,
    object_of,
    objects_of,
    required,
    text_in,
    texts_in,
    words_of_all,
)
from tsd.api.meta import custom_in
from tsd.codec.annotation import Annotation
from tsd.codec.rowkey import Layout
from tsd.codec.times import FIRST_MS, LAST_MS, storable
from tsd.codec.tsuid import parse_uid, split_tsuid
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import BadLine, BadQuery, Refused
from tsd.metadata.notes import Notes
from tsd.query.times import read_time

MOST_NOTES = 10_000  # of one bulk
MOST_SERIES = 1000  # of one bulk deletion
NO_START = "The start timestamp has not been set"
NO_START_IN_URL = "Missing start time"
METHODS = ("GET", "POST", "PUT", "DELETE")
IN_URL = {name: name for name in ("tsuid", "description", "notes")}


class Sent(NamedTuple):
    """A note as a client sent it."""

    note: Annotation
    tsuid: bytes
    changed: dict[str, Any]  # the fields of the note that it sets


def routes(notes: Notes, layout: Layout, now_ms: Callable[[], int]) -> dict[str, Endpoint]:
    """The endpoints."""
    pages = NotePages(notes, layout, now_ms)

    async def one(request: Request) -> Response:
        return await (pages.bulk(request) if request.segments[1:2] == ("bulk",) else pages.one(request))

    async def many(request: Request) -> Response:
        if meant_method(request) == "GET" and request.segments[1:2] != ("bulk",):
            return await pages.listed(request)
        return await one(request)

    return {"api/annotation": one, "api/annotations": many}


class NotePages:
    """What the endpoints do."""

    def __init__(self, notes: Notes, layout: Layout, now_ms: Callable[[], int]) -> None:
        self._notes = notes
        self._layout = layout
        self._now_ms = now_ms

    async def one(self, request: Request) -> Response:
        """One note."""
        method, members = meant_method(request), self._members(request)
        if method not in METHODS:
            raise not_allowed(method)
        if method in ("POST", "PUT"):
            sent = self._sent(members)
            if not sent.changed:
                return UNCHANGED
            note = await self._notes.put(sent.note, sent.changed, sent.tsuid, replace=method == "PUT")
            return answer(show(note))
        start_time = number_in(members, "startTime")
        if start_time < 1:
            raise Refused(400, NO_START_IN_URL)
        tsuid = self._tsuid(text_in(members, "tsuid"))
        if method == "DELETE":
            await self._notes.delete(start_time, tsuid)
            return DONE
        note_there = await self._notes.get(start_time, tsuid)
        if note_there is None:
            raise Refused(404, "Unable to locate annotation in storage")
        return answer(show(note_there))

    async def listed(self, request: Request) -> Response:
        """The global notes of some time."""
        if request.body:
            members = object_of(request)
            start_ms, end_ms = _ms(number_in(members, "startTime")), _ms(number_in(members, "endTime"))
        else:
            start_ms = self._time_ms(request.param("start_time") or "")
            end_ms = self._time_ms(request.param("end_time") or "")
        if start_ms is None:
            raise Refused(400, NO_START_IN_URL)
        found = await self._notes.global_notes(start_ms, self._now_ms() if end_ms is None else end_ms)
        return answer([show(note) for note in found])

    async def bulk(self, request: Request) -> Response:
        """Many notes."""
        method = meant_method(request)
        if method == "DELETE":
            return await self._delete_many(request)
        if method not in ("POST", "PUT"):
            raise not_allowed(method)
        asked = objects_of(request)
        if len(asked) > MOST_NOTES:
            raise Refused(413, f"More than {MOST_NOTES} annotations")
        sent = [self._sent(members, in_bulk=True) for members in asked]  # before anything is written
        stored = [await self._notes.put(one.note, one.changed, one.tsuid, replace=method == "PUT") for one in sent]
        return answer([show(note) for note in stored])

    async def _delete_many(self, request: Request) -> Response:
        if request.body:
            members = object_of(request)
            tsuids, global_ = texts_in(members, "tsuids"), is_true(members.get("global"))
            start, end = text_in(members, "startTime"), text_in(members, "endTime")
        else:
            required(request, "start_time")
            tsuids, global_ = words_of_all(request.params.get("tsuids", ())), is_true(request.param("global"))
            start, end = request.param("start_time") or "", request.param("end_time") or ""
        start_ms, end_ms = self._time_ms(start), self._time_ms(end)
        if start_ms is None:
            raise Refused(400, "Missing the start time value")
        if not tsuids and not global_:
            raise Refused(400, "Missing the TSUIDs or global annotations flag")
        if len(tsuids) > MOST_SERIES:
            raise Refused(413, f"More than {MOST_SERIES} TSUIDs")
        end_ms = self._now_ms() if end_ms is None else end_ms
        ids = [self._tsuid(tsuid) for tsuid in tsuids]
        deleted = await self._notes.delete_between(start_ms, end_ms, ids, global_=global_)
        told: dict[str, Any] = {"tsuids": tsuids or None, "global": global_, "startTime": start_ms, "endTime": end_ms}
        return answer(told | {"totalDeleted": deleted})

    def _members(self, request: Request) -> Mapping[str, Any]:
        """A note's members: those of the body, or without one the parameters, whose times may have any form."""
        if request.body:
            return object_of(request)
        found = members_in_url(request, IN_URL)
        for name, parameter in (("startTime", "start_time"), ("endTime", "end_time")):
            time_ms = self._time_ms(request.param(parameter) or "")
            if time_ms is not None:
                found[name] = time_ms // 1000
        if "startTime" not in found:
            raise Refused(400, NO_START_IN_URL)
        return found

    def _sent(self, members: Mapping[str, Any], *, in_bulk: bool = False) -> Sent:
        """A note to be stored; raises Refused."""
        tsuid = text_in(members, "tsuid")
        start_time, end_time = number_in(members, "startTime"), number_in(members, "endTime")
        changed: dict[str, Any] = {name: text_in(members, name) for name in ("description", "notes")}
        changed = {name: text for name, text in changed.items() if text}
        if end_time:
            changed["end_time"] = end_time
        if members.get("custom") is not None:
            changed["custom"] = custom_in(members)
        if start_time < 1:
            told = (
                f"Annotation error: TSUID: {tsuid} Start: {start_time}  Description: {changed.get('description', '')}"
            )
            raise Refused(400, NO_START, told if in_bulk else NO_START)
        if start_time > LAST_MS or (start_time >= FIRST_MS and not storable(start_time)):
            raise Refused(400, f"Invalid timestamp: {start_time}")
        return Sent(Annotation(start_time, tsuid=tsuid, **changed), self._tsuid(tsuid), changed)

    def _tsuid(self, text: str) -> bytes:
        """A series' TSUID, empty for a global note; raises Refused."""
        if not text:
            return b""
        try:
            tsuid = parse_uid(text)
            split_tsuid(self._layout.widths, tsuid)
        except BadLine as error:
            raise Refused(400, str(error)) from error
        return tsuid

    def _time_ms(self, text: str) -> int | None:
        """A time in any form; None for none. Raises Refused."""
        if not text:
            return None
        try:
            return read_time(text, self._now_ms())
        except BadQuery as error:
            raise Refused(500, error.message) from error


def _ms(time: int) -> int | None:
    """A time of seconds or ms in ms; None for none.

    >>> _ms(1356998400), _ms(1356998400500), _ms(0)
    (1356998400000, 1356998400500, None)
    """
    if time < 1:
        return None
    return time if time >= FIRST_MS else time * 1000


def show(note: Annotation) -> dict[str, Any]:
    """A note as clients get it: `custom` only where there is some.

    >>> list(show(Annotation(1356998400)))
    ['tsuid', 'description', 'notes', 'startTime', 'endTime']
    """
    custom = {} if note.custom is None else {"custom": note.custom}
    shown = {"tsuid": note.tsuid, "description": note.description, "notes": note.notes, **custom}
    return {**shown, "startTime": note.start_time, "endTime": note.end_time}
