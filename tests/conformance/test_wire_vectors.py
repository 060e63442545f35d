"""Recorded telnet lines to a real OpenTSDB, sent to this daemon."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.running import Client, running
from tsd.codec.names import Kind
from tsd.daemon.wiring import make_uids

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "wire_vectors.json").read_text(encoding="utf-8")
)

# Settings of recorded lines for features that tsd does not have.
NOT_HERE = ("tsd.core.authentication.enable",)

ROLLUPS = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3, "avg": 4},
    "intervals": [
        {"table": "tsdb", "preAggregationTable": "agg", "interval": "1m", "rowSpan": "1h", "defaultInterval": True},
        {"table": "1h", "preAggregationTable": "agg-1h", "interval": "1h", "rowSpan": "1d"},
    ],
}

HELP = "available commands: stats dropcaches version exit help put rollup histogram diediedie \n"
LONG = "put: illegal argument: line too long: more than 16384 bytes\n"


class Departure(NamedTuple):
    """An intentional difference."""

    why: str
    reply: str
    closes: bool = False


NO_DEPARTURE = Departure("", "")

# By the bytes sent. docs/differences.md lists them.
DEPARTURES = {
    "put wire.Ã© 1500000000 1 a=b\n": Departure(
        "what was sent is shown, not its bytes as other characters",
        'put: illegal argument: Invalid metric name ("wire.é"): illegal character: \\xa9: the line is UTF-8, and '
        "tsd.network.telnet_charset is iso-8859-1\n",
    ),
    "put wire.a 9999999999999 1 a=b\n": Departure(
        "the base time would wrap, and the point be stored in 2014",
        "put: illegal argument: bad timestamp=9999999999999 when trying to add value=[1]/0 "
        "to metric=wire.a, tags={a=b}\n",
    ),
    "rollup sum wire.a 1500000000 1 a=b\n": Departure(
        "OpenTSDB trips over an unset key; this says what is missing",
        "rollup: illegal argument: No rollup or aggregations were configured\n",
    ),
    "rollup foo wire.a 1500000000 1 a=b\n": Departure(
        "likewise", "rollup: illegal argument: No rollup or aggregations were configured\n"
    ),
    "histogram wire.h 1500000000 U=1:O=2 a=b\n": Departure(
        "OpenTSDB can write it and not read it",
        "histogram: illegal argument: not a histogram: U=1:O=2: a histogram has 1 to 32767 buckets, got 0\n",
    ),
    "histogram wire.h 1500000000 foo a=b\n": Departure(
        "OpenTSDB drops it without a word",
        'histogram: illegal argument: not a histogram: foo: For input string: "foo"\n',
    ),
    "histogram wire.h 1500000000 0,1=x a=b\n": Departure(
        "likewise", "histogram: illegal argument: not a histogram: 0,1=x: Invalid character 'x' in x\n"
    ),
    "histogram wire.h 1500000000 0,1,2=1 a=b\n": Departure(
        "likewise",
        "histogram: illegal argument: not a histogram: 0,1,2=1: Unable to parse bucket bounds: 0,1,2\n",
    ),
    "rollup 1h-sum wire.a 1500000000.5 1 a=b\n": Departure(
        "decimal seconds",
        "rollup: illegal argument: bad timestamp=1500000000500 when trying to add value=[1]/0 "
        "to metric=wire.a, tags={a=b}\n",
    ),
    "rollup : wire.a 1500000000 1 a=b\n": Departure(
        "OpenTSDB drops it without a word", "rollup: illegal argument: Missing interval or aggregator\n"
    ),
}


def settings_of(vector: dict[str, Any]) -> dict[str, str]:
    """Return the daemon's settings for a vector: OpenTSDB's defaults where tsd's differ, then the vector's own."""
    defaults = {"tsd.no_diediedie": "false", "tsd.core.auto_create_metrics": "true"}
    own = {key: value.removesuffix(" (default)") for key, value in vector["config"].items()}
    if own.pop("rollup intervals", ""):
        own["tsd.rollups.config"] = json.dumps(ROLLUPS)
    return {**defaults, **own}


def here() -> list[dict[str, Any]]:
    return [vector for vector in VECTORS if not any(key in vector["config"] for key in NOT_HERE)]


def expected(vector: dict[str, Any]) -> Departure:
    """Return the recorded answer, or the intentional difference."""
    send = vector["send"]
    unconfigured = "No rollup or aggregations were configured" in DEPARTURES.get(send, NO_DEPARTURE).reply
    if send in DEPARTURES and not (unconfigured and "tsd.rollups.enable" in vector["config"]):
        return DEPARTURES[send]
    if len(send) > 1024 and vector.get("close"):
        return Departure("a long line is skipped, the connection lives", LONG if len(send) > 16384 else "")
    return Departure("", vector["reply"] or "", bool(vector.get("close")))


async def converse(client: Client, vector: dict[str, Any]) -> bytes:
    """Send a vector as recorded. Return the whole answer, and whether the connection still works where it should."""
    wanted = expected(vector)
    sent = b""
    for part in vector.get("parts", [vector["send"]]):
        data = part.encode("latin-1" if vector.get("send_encoding") == "latin-1" else "utf-8")
        sent += data
        await client.send(data)
    if wanted.closes:
        return await client.read_to_end()
    if not sent.endswith(b"\n"):
        await client.stream.send_eof()
        return await client.read_to_end()
    await client.send(b"nosuchcommand\n")
    marker = b"unknown command: nosuchcommand.  Try `help'.\n"
    return (await client.read_until(marker)).removesuffix(marker)


def group_of(vector: dict[str, Any]) -> str:
    """Return the group of vectors that share a daemon."""
    own = vector["send"] if vector.get("close") and vector["send"].startswith("diediedie") else ""
    return json.dumps([settings_of(vector), own], sort_keys=True)


@pytest.mark.difference(
    "long-lines",
    topic="connections",
    theirs="A line over 1,024 bytes ends the connection and discards what was sent after it",
    ours=(
        "Lines up to 16,384 bytes are accepted. A longer line is skipped with an error line, and the connection "
        "stays open"
    ),
)
@pytest.mark.difference(
    "rollup-unconfigured",
    topic="rollups",
    theirs="`rollup` without a configuration fails because of an unset key",
    ours="The answer says that the configuration is missing",
)
@pytest.mark.difference(
    "silent-histograms",
    topic="rollups",
    theirs="A malformed histogram, one without buckets, and `rollup :` are dropped silently",
    ours="They are answered with an error line",
)
@pytest.mark.parametrize("group", sorted({group_of(vector) for vector in here()}))
async def test_daemon_answers_recorded_lines(group: str, tmp_path: Path) -> None:
    vectors = [vector for vector in here() if group_of(vector) == group]
    async with running(tmp_path, settings_of(vectors[0])) as daemon:
        await make_uids(daemon.daemon.config, daemon.daemon.store).find_or_assign(Kind.METRIC, [b"wire.m"])
        await make_uids(daemon.daemon.config, daemon.daemon.store).find_or_assign(Kind.TAGK, [b"a"])
        for vector in vectors:
            async with daemon.client() as client:
                answer = (await converse(client, vector)).decode("utf-8")
            wanted = expected(vector)
            if vector["reply"] is None and not wanted.why:
                assert re.fullmatch(vector["reply_regex"], answer), vector
            else:
                assert answer == wanted.reply, vector


def test_every_departure_has_a_vector() -> None:
    for send, departure in DEPARTURES.items():
        recorded = [vector["reply"] for vector in here() if vector["send"] == send]
        assert recorded
        assert departure.reply not in recorded


def test_skipped_vectors_need_missing_features() -> None:
    left_out = [vector for vector in VECTORS if vector not in here()]
    assert len(left_out) == 5
    commands = ("auth", "help", "x\nput")
    assert all(vector["send"].startswith(commands) for vector in left_out)


@pytest.mark.difference(
    "diediedie",
    topic="security",
    theirs="`diediedie` ends the daemon for any client",
    ours="It is an unknown command unless `tsd.no_diediedie = false`, and then for admins only",
)
async def test_diediedie_is_off_unless_configured(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon, daemon.client() as client:
        await client.send(b"diediedie\nhelp\n")
        assert await client.read_until(b"\n") == b"unknown command: diediedie.  Try `help'.\n"
        assert (await client.read_until(b"\n")).decode() == HELP.replace("diediedie ", "")
