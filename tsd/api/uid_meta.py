"""`/api/uid/uidmeta` and `/api/uid/tsmeta`: metadata of names and series (docs/compat/wire.md §12.6)."""

import math
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from tsd.api.messages import (
    DONE,
    UNCHANGED,
    answer,
    as_text,
    check_meant_method,
    is_true,
    members_in_url,
    missing_part,
    number_in,
    object_of,
    required,
    text_in,
    unparsable,
)
from tsd.api.search import BadSelector, parse_selector
from tsd.api.uid import KINDS
from tsd.codec.metadata import TsMeta, UidMeta
from tsd.codec.names import Kind, parse_uid, show_uid
from tsd.codec.text import show_signed
from tsd.errors import BadLine, NoSuchName, Refused
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.tables.catalog import (
    Metadata,
    NamedUid,
    Names,
    NoSuchMetadata,
    SeriesCatalog,
    SeriesMetadata,
    SeriesSelector,
)

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


def endpoints(metadata: Metadata | None, names: Names | None, catalog: SeriesCatalog) -> dict[str, Endpoint]:
    """Return the endpoints by their word after /api/uid/."""
    if metadata is None or names is None:
        return dict.fromkeys(("uidmeta", "tsmeta"), missing_part("metadata"))
    return {
        "uidmeta": UidMetaEndpoint(metadata, names).respond,
        "tsmeta": TsMetaEndpoint(metadata, catalog).respond,
    }


class UidMetaEndpoint:
    """`/api/uid/uidmeta`."""

    def __init__(self, metadata: Metadata, names: Names) -> None:
        self._metadata = metadata
        self._names = names

    async def respond(self, request: Request) -> Response:
        """Answer a request. Raise Refused, StoreError."""
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
            await self._metadata.delete_uid(kind, uid)
            return DONE
        width = self._names.width(kind)
        if len(uid) != width:
            wrong = f"Wrong id.length = {len(uid)} which is != {width} required for '{kind.value}'"
            if method == "GET":
                raise Refused(500, f"java.lang.IllegalArgumentException: {wrong}")
            raise Refused(400, wrong, wrong)
        changes = changes_in(members, FIELDS)
        if method != "GET" and not changes:
            return UNCHANGED

        def change(stored: UidMeta) -> UidMeta:
            kept = UidMeta(kind, created_s=stored.created_s) if method == "PUT" else stored
            return kept._replace(**changes)

        try:
            if method == "GET":
                return answer(show_named(await self._metadata.get_uid(kind, uid)))
            return answer(show_named(await self._metadata.edit_uid(kind, uid, change)))
        except NoSuchName as error:
            why = f"No such unique ID for '{kind.value}': {show_signed(uid)}"
            raise Refused(404, "Could not find the requested UID", why) from error


class TsMetaEndpoint:
    """`/api/uid/tsmeta`."""

    def __init__(self, metadata: Metadata, catalog: SeriesCatalog) -> None:
        self._metadata = metadata
        self._catalog = catalog

    async def respond(self, request: Request) -> Response:
        """Answer a request. Raise Refused, StoreError."""
        method = check_meant_method(request, *METHODS)
        if method == "GET":
            return await self._get(request)
        members = object_of(request) if request.body else members_in_url(request, SERIES_IN_URL)
        if method == "DELETE":
            if not text_in(members, "tsuid"):
                raise Refused(400, "Unable to delete TSMeta information", "Missing UID")
            await self._metadata.delete_series(self._parse(text_in(members, "tsuid")))
            return DONE
        return await self._change(request, members, replace=method == "PUT")

    async def _get(self, request: Request) -> Response:
        try:
            if text := request.param("tsuid"):
                found = await self._metadata.get_series(self._parse(text))
                if found is None:
                    raise Refused(404, "Could not find Timeseries meta data")
                return answer(show_series_meta(found))
            selector = _selector(required(request, "m"))
            async with aclosing(self._metadata.find_series(selector)) as all_found:
                return answer([show_series_meta(found) async for found in all_found])
        except NoSuchName as error:
            raise Refused(404, "Unable to find one of the UIDs", str(error)) from error

    async def _change(self, request: Request, members: Mapping[str, Any], *, replace: bool) -> Response:
        create = is_true(request.param("create"))
        if text := text_in(members, "tsuid"):
            series, create = self._parse(text), False
        else:
            series = await self._exact(required(request, "m"))
            if not create and not await self._metadata.has_series(series):
                raise Refused(400, 'Could not find TSMeta, specify "create=true" to create a new one.')
        changes = changes_in(members, SERIES_TEXTS) | numbers_in(members)
        if not changes and not create:
            return UNCHANGED

        def change(stored: TsMeta) -> TsMeta:
            kept = TsMeta(stored.tsuid, created_s=stored.created_s) if replace else stored
            return kept._replace(**changes)

        try:
            return answer(show_series_meta(await self._metadata.edit_series(series, change, create=create)))
        except NoSuchMetadata as error:
            raise Refused(400, str(error), str(error)) from error
        except NoSuchName as error:
            raise Refused(500, str(error)) from error

    async def _exact(self, text: str) -> bytes:
        """Return the series with exactly the tags of a selector text. Raise Refused."""
        try:
            selected = await self._catalog.select(_selector(text))
        except NoSuchName as error:
            raise Refused(404, "Unable to find one of the UIDs", str(error)) from error
        series = selected.exact()
        if series is None:
            raise Refused(400, "Tags cannot be null or empty when getting a TSUID")
        return series

    def _parse(self, text: str) -> bytes:
        try:
            return self._catalog.parse_series(text)
        except BadLine as error:
            raise Refused(400, str(error)) from error


def show_series_meta(found: SeriesMetadata) -> dict[str, object]:
    """Return the JSON of a series' metadata."""
    meta = found.meta
    return {
        "tsuid": show_uid(found.series),
        "metric": show_named(found.metric),
        "tags": [show_named(one) for one in found.tags],
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


def show_named(found: NamedUid) -> dict[str, object]:
    """Return the JSON of a UID and its metadata."""
    meta = found.meta
    return {
        "uid": show_uid(found.uid),
        "type": meta.kind.name,
        "name": found.name,
        "description": meta.description,
        "notes": meta.notes,
        "created": meta.created_s,
        "custom": meta.custom,
        "displayName": meta.display_name,
    }


def show_bound(bound: float) -> float | str:
    """Return a bound in JSON, which has no NaN.

    >>> show_bound(1.5), show_bound(math.nan)
    (1.5, 'NaN')
    """
    return bound if math.isfinite(bound) else "NaN" if math.isnan(bound) else f"{'-' * (bound < 0)}Infinity"


def changes_in(members: Mapping[str, Any], fields: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the changed fields of UidMeta or TsMeta, `custom` among them. Raise Refused."""
    changes: dict[str, Any] = {}
    for field, spellings in fields.items():
        for name in spellings:
            if members.get(name) is not None:
                changes[field] = text_in(members, name)
    if "custom" in members and members["custom"] is not None:
        changes["custom"] = custom_in(members)
    return changes


def custom_in(members: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the custom fields: an object of strings. Raise Refused."""
    custom = members["custom"]
    if not isinstance(custom, dict):
        raise unparsable(f"custom: got {type(custom).__name__}, wanted an object of strings")
    return {
        name: value if value is None or type(value) is str else as_text(value, name)  # there may be thousands
        for name, value in custom.items()
    }


def numbers_in(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed bounds and retention. Raise Refused."""
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


def _selector(text: str) -> SeriesSelector:
    try:
        return parse_selector(text)
    except BadSelector as error:
        raise Refused(400, str(error), str(error)) from error
