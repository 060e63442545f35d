"""`/api/uid/uidmeta` and `/api/uid/tsmeta`: what users say of names and of series (wire.md §12.6)."""

import math
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from tsd.api.messages import (
    DONE,
    UNCHANGED,
    answer,
    check_meant_method,
    is_true,
    members_in_url,
    number_in,
    object_of,
    required,
    text_in,
    unparsable,
)
from tsd.api.uid import KINDS
from tsd.codec.jsontext import Json
from tsd.codec.rowkey import Series, join_pairs
from tsd.codec.tsuid import join_tsuid, parse_uid, split_tsuid
from tsd.codec.uid import Kind, Widths
from tsd.codec.words import show_signed
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import BadLine, NoSuchName, Refused
from tsd.metadata.described import Named, SeriesMeta, SeriesMetas, UidMetas, named
from tsd.metadata.selection import BadSelection, Wanted, parse_selection, resolve
from tsd.uids import Uids

FIELDS = {"display_name": ("displayName", "display_name"), "description": ("description",), "notes": ("notes",)}
SERIES_TEXTS = {**FIELDS, "units": ("units",), "data_type": ("dataType", "data_type")}
URL_TEXTS = {"display_name": "displayName", "description": "description", "notes": "notes"}
UID_IN_URL = {"uid": "uid", "type": "type", **URL_TEXTS}
SERIES_IN_URL = {
    "tsuid": "tsuid",
    **URL_TEXTS,
    "units": "units",
    "data_type": "dataType",
    **{name: name for name in ("retention", "max", "min")},
}
METHODS = ("GET", "POST", "PUT", "DELETE")


def endpoints(
    uids: Uids, names: UidMetas, series: SeriesMetas, widths: Widths, now_s: Callable[[], int]
) -> dict[str, Endpoint]:
    """The endpoints by their word behind /api/uid/."""
    uid_pages = UidMetaPages(uids, names, widths)
    series_pages = SeriesMetaPages(uids, names, series, widths, now_s)
    return {"uidmeta": uid_pages.respond, "tsmeta": series_pages.respond}


class UidMetaPages:
    """`/api/uid/uidmeta`."""

    def __init__(self, uids: Uids, metas: UidMetas, widths: Widths) -> None:
        self._uids = uids
        self._metas = metas
        self._widths = widths

    async def respond(self, request: Request) -> Response:
        """See routes."""
        method = check_meant_method(request, *METHODS)
        if request.body and method != "GET":
            members: Mapping[str, Any] = object_of(request)
        else:
            required(request, "uid")
            required(request, "type")
            members = members_in_url(request, UID_IN_URL)
        if not text_in(members, "uid"):
            raise Refused(400, "Missing UID", "Missing UID")
        kind = _kind(text_in(members, "type"))
        uid = _uid(text_in(members, "uid"))
        if method == "DELETE":
            await self._metas.delete(kind, uid)
            return DONE
        width = self._widths.of(kind)
        if len(uid) != width:
            wrong = f"Wrong id.length = {len(uid)} which is != {width} required for '{kind.value}'"
            raise Refused(500, f"java.lang.IllegalArgumentException: {wrong}")
        changes = changes_in(members, FIELDS)
        if method != "GET" and not changes:
            return UNCHANGED
        found = await self._named(kind, uid)
        if method != "GET":
            meta = await self._metas.change(kind, uid, changes, replace=method == "PUT")
            found = found._replace(meta=meta)
        return answer(show_named(found))

    async def _named(self, kind: Kind, uid: bytes) -> Named:
        try:
            return (await named(self._uids, self._metas, kind, [uid]))[0]
        except NoSuchName as error:
            why = f"No such unique ID for '{kind.value}': {show_signed(uid)}"
            raise Refused(404, "Could not find the requested UID", why) from error


class SeriesMetaPages:
    """`/api/uid/tsmeta`."""

    def __init__(
        self, uids: Uids, names: UidMetas, metas: SeriesMetas, widths: Widths, now_s: Callable[[], int]
    ) -> None:
        self._uids = uids
        self._names = names
        self._metas = metas
        self._widths = widths
        self._now_s = now_s

    async def respond(self, request: Request) -> Response:
        """See routes."""
        method = check_meant_method(request, *METHODS)
        if method == "GET":
            return await self._get(request)
        members = object_of(request) if request.body else members_in_url(request, SERIES_IN_URL)
        if method == "DELETE":
            if not text_in(members, "tsuid"):
                raise Refused(400, "Unable to delete TSMeta information", "Missing UID")
            await self._metas.delete(_tsuid(text_in(members, "tsuid"), self._widths))
            return DONE
        return await self._change(request, members, replace=method == "PUT")

    async def _get(self, request: Request) -> Response:
        if text := request.param("tsuid"):
            tsuid = _tsuid(text, self._widths)
            found = await self._metas.get(tsuid)
            if found is None:
                raise Refused(404, "Could not find Timeseries meta data")
            return answer(await self._show(split_tsuid(self._widths, tsuid), found))
        wanted = await _resolved(self._uids, required(request, "m"))
        shown = []
        async with aclosing(self._metas.of_metric(wanted.metric or b"")) as all_of_metric:
            async for series, found in all_of_metric:
                if wanted.takes(series.pairs):
                    shown.append(await self._show(series, found))
        return answer(shown)

    async def _change(self, request: Request, members: Mapping[str, Any], *, replace: bool) -> Response:
        create = is_true(request.param("create"))
        if text := text_in(members, "tsuid"):
            tsuid, create = _tsuid(text, self._widths), False
        else:
            tsuid = await self._tsuid_of(required(request, "m"))
            if not create and await self._metas.get(tsuid) is None:
                raise Refused(400, 'Could not find TSMeta, specify "create=true" to create a new one.')
        changes = changes_in(members, SERIES_TEXTS) | numbers_in(members)
        if not changes and not create:
            return UNCHANGED
        series = split_tsuid(self._widths, tsuid)
        try:  # every UID must have a name, as with OpenTSDB
            await self._show_names(series)
            meta = await self._metas.change(tsuid, changes, replace=replace, create_s=self._now_s() if create else None)
        except NoSuchName as error:
            if str(error).startswith("Requested"):
                raise Refused(400, str(error), str(error)) from error
            raise Refused(500, str(error)) from error
        found = await self._metas.get(tsuid)
        return answer(await self._show(series, found or SeriesMeta(meta)))

    async def _tsuid_of(self, text: str) -> bytes:
        """The one series that a text names by all its tags."""
        wanted = await _resolved(self._uids, text)
        values = [(tagk, tagv) for tagk, tagvs in wanted.values.items() for tagv in tagvs or ()]
        if wanted.metric is None or not values or any(tagk is None for tagk, _ in values):
            raise Refused(400, "Tags cannot be null or empty when getting a TSUID")
        return wanted.metric + join_pairs((tagk or b"", tagv) for tagk, tagv in values)

    async def _show_names(self, series: Series) -> tuple[Json, list[Json]]:
        """The names of a series, each with what is said of it; raises NoSuchName."""
        [metric] = await named(self._uids, self._names, Kind.METRIC, [series.metric])
        tagks = await named(self._uids, self._names, Kind.TAGK, [tagk for tagk, _ in series.pairs])
        tagvs = await named(self._uids, self._names, Kind.TAGV, [tagv for _, tagv in series.pairs])
        return show_named(metric), [show_named(one) for pair in zip(tagks, tagvs, strict=True) for one in pair]

    async def _show(self, series: Series, found: SeriesMeta) -> dict[str, object]:
        try:
            metric, tags = await self._show_names(series)
        except NoSuchName as error:
            raise Refused(404, "Unable to find one of the UIDs", str(error)) from error
        meta = found.meta
        return {
            "tsuid": join_tsuid(series).hex().upper(),
            "metric": metric,
            "tags": tags,
            "description": meta.description,
            "notes": meta.notes,
            "created": meta.created_s,
            "units": meta.units,
            "retention": meta.retention,
            "max": show_bound(meta.max),
            "min": show_bound(meta.min),
            "custom": meta.custom,
            "displayName": meta.display_name,
            "dataType": meta.data_type,
            "lastReceived": found.last_received_s,
            "totalDatapoints": found.points,
        }


def show_named(found: Named) -> dict[str, Json]:
    """A name and what is said of it."""
    meta = found.meta
    return {
        "uid": found.uid.hex().upper(),
        "type": meta.kind.name,
        "name": found.name,
        "description": meta.description,
        "notes": meta.notes,
        "created": meta.created_s,
        "custom": meta.custom,
        "displayName": meta.display_name,
    }


def show_bound(bound: float) -> float | str:
    """A bound in JSON, which has no NaN.

    >>> show_bound(1.5), show_bound(math.nan)
    (1.5, 'NaN')
    """
    return bound if math.isfinite(bound) else "NaN" if math.isnan(bound) else f"{'-' * (bound < 0)}Infinity"


def changes_in(members: Mapping[str, Any], fields: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """The fields that are named, by ours; `custom` among them. Raises Refused."""
    changes: dict[str, Any] = {}
    for field, spellings in fields.items():
        for name in spellings:
            if members.get(name) is not None:
                changes[field] = text_in(members, name)
    if "custom" in members and members["custom"] is not None:
        changes["custom"] = custom_in(members)
    return changes


def custom_in(members: Mapping[str, Any]) -> dict[str, str | None]:
    """A user's own fields: an object of texts; raises Refused."""
    custom = members["custom"]
    if not isinstance(custom, dict):
        raise unparsable(f"custom: got {type(custom).__name__}, wanted an object of texts")
    return {name: None if custom[name] is None else text_in(custom, name) for name in custom}


def numbers_in(members: Mapping[str, Any]) -> dict[str, Any]:
    """The bounds and the retention that are named; raises Refused."""
    changes: dict[str, Any] = {}
    for name, read in (("retention", int), ("max", float), ("min", float)):
        value = members.get(name)
        if value is None or value == "":
            continue
        try:
            changes[name] = number_in(members, name) if read is int else float(value)
        except (Refused, ValueError, TypeError, OverflowError) as exc:
            raise Refused(400, f"Unable to parse '{name}' value") from exc
    return changes


def _kind(word: str) -> Kind:
    if not word:
        raise Refused(400, "Missing type", "Missing type")
    if word.lower() not in KINDS:
        raise Refused(500, f"Invalid type requested: {word}")
    return KINDS[word.lower()]


def _uid(text: str) -> bytes:
    try:
        return parse_uid(text)
    except BadLine as error:
        raise Refused(400, str(error)) from error


def _tsuid(text: str, widths: Widths) -> bytes:
    tsuid = _uid(text)
    try:
        split_tsuid(widths, tsuid)
    except BadLine as error:
        raise Refused(400, str(error)) from error
    return tsuid


async def _resolved(uids: Uids, text: str) -> Wanted:
    try:
        return await resolve(uids, parse_selection(text))
    except BadSelection as error:
        raise Refused(400, str(error), str(error)) from error
    except NoSuchName as error:
        raise Refused(404, "Unable to find one of the UIDs", str(error)) from error
