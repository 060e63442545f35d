"""Requests that a real OpenTSDB answered: those it refused while it read them are refused with the same words, and all
others are read."""

import json
import urllib.parse
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from tests.cases import all_of
from tsd.errors import BadQuery
from tsd.query.model import Query
from tsd.query.parse.body import read_body
from tsd.query.parse.uri import read_uri
from tsd.tables.quirks import quirks_for

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "query_vectors.json").read_text())["queries"]
NOW_MS = 1_600_000_000_000
# Told once rows are read, names looked up, or by who speaks HTTP.
LATER = ("No such name for", "unhandled fill", "One or more TSUIDs", "contains illegal", "Requested serializer")


def is_query(vector: dict[str, Any]) -> bool:
    return vector["request"]["path"].partition("?")[0] == "/api/query" and vector["request"]["method"] in (
        "GET",
        "POST",
    )


QUERIES = [vector for vector in VECTORS if is_query(vector)]
REFUSED = [
    vector
    for vector in QUERIES
    if vector["status"] != 200 and not vector["response"]["error"]["message"].startswith(LATER)
]
TAKEN = [vector for vector in QUERIES if vector["status"] == 200]


def name(vector: dict[str, Any]) -> str:
    return f"{QUERIES.index(vector)}-{vector['topic']}"


def read(vector: dict[str, Any], *, corrected: bool = False) -> Query:
    request = vector["request"]
    if request["method"] == "GET":
        params = urllib.parse.parse_qs(request["path"].partition("?")[2], keep_blank_values=True)
        return read_uri(params, NOW_MS, local=UTC, quirks=quirks_for(corrected))
    body = request.get("body", "")
    text = body if isinstance(body, str) else json.dumps(body)
    return read_body(text.encode(), NOW_MS, local=UTC, quirks=quirks_for(corrected))


def test_there_are_vectors() -> None:
    assert len(REFUSED) > 60
    assert len(TAKEN) > 300


@all_of(REFUSED, name)
def test_vector_is_refused_like_opentsdb(vector: dict[str, Any]) -> None:
    with pytest.raises(BadQuery) as refused:
        read(vector)
    assert refused.value.status == vector["status"]
    assert refused.value.message == vector["response"]["error"]["message"]


@all_of(TAKEN, name)
def test_vector_is_parsed(vector: dict[str, Any]) -> None:
    for corrected in (False, True):
        query = read(vector, corrected=corrected)
        assert query.start_ms < query.end_ms
        assert [sub.index for sub in query.queries] == list(range(len(query.queries)))


@pytest.mark.difference("client-mistakes")
def test_corrected_mistakes_never_have_status_500() -> None:
    mistaken = [v for v in REFUSED if v["status"] == 500 and "not_key" not in v["response"]["error"]["message"]]
    assert mistaken
    for vector in mistaken:
        with pytest.raises(BadQuery) as refused:
            read(vector, corrected=True)
        assert refused.value.status == 400
