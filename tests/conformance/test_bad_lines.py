"""Bad lines: the exact reply, the counts, and that the lines before and after are stored."""

from pathlib import Path
from typing import NamedTuple

import pytest

from tests.running import Client, Running, running
from tsd.codec.names import Kind
from tsd.daemon.wiring import make_uids
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, LINE_TOO_LONG, UNKNOWN_NAME
from tsd.store import scan

T = b"1500000000"


class Case(NamedTuple):
    """A refused line."""

    line: bytes
    reply: str  # after "put: ", UTF-8
    reason: str = ILLEGAL_ARGUMENT


def value(word: bytes, reply: str, reason: str = INVALID_VALUE) -> Case:
    return Case(b"put m " + T + b" " + word + b" a=b", reply, reason)


def time(word: bytes, reply: str, reason: str = INVALID_VALUE) -> Case:
    return Case(b"put m " + word + b" 1 a=b", reply, reason)


def tags(text: bytes, reply: str, reason: str = ILLEGAL_ARGUMENT) -> Case:
    return Case(b"put m " + T + b" 1 " + text, reply, reason)


BAD_TIME = "illegal argument: bad timestamp={} when trying to add value=[1]/0 to metric=m, tags={{a=b}}"
NINE = " ".join(f"k{n}=v" for n in range(9))

IS_UTF_8 = ": the line is UTF-8, and tsd.network.telnet_charset is iso-8859-1"

CASES = [
    # count
    Case(b"put", "illegal argument: not enough arguments (need least 4, got 0)"),
    Case(b"put ", "illegal argument: not enough arguments (need least 4, got 1)"),
    Case(b"put m", "illegal argument: not enough arguments (need least 4, got 1)"),
    Case(b"put m 1", "illegal argument: not enough arguments (need least 4, got 2)"),
    Case(b"put m 1 1", "illegal argument: not enough arguments (need least 4, got 3)"),
    Case(b"put m 1 1\ta=b", "illegal argument: not enough arguments (need least 4, got 3)"),
    Case(b"put  m 1 1 a=b", "illegal argument: empty metric name"),
    Case(b"put m  1 1 a=b", "invalid value: Empty string", INVALID_VALUE),
    Case(b"put m " + T + b"  1 a=b", "illegal argument: empty value"),
    # timestamp
    time(b"0", "illegal argument: invalid timestamp: 0", ILLEGAL_ARGUMENT),
    time(b"-0", "illegal argument: invalid timestamp: 0", ILLEGAL_ARGUMENT),
    time(b"-1", "illegal argument: invalid timestamp: -1", ILLEGAL_ARGUMENT),
    time(b"abc", "invalid value: Invalid character 'a' in abc"),
    time(b"1500000000s", "invalid value: Invalid character 's' in 1500000000s"),
    time(b"15e8", "invalid value: Invalid character 'e' in 15e8"),
    time(b"0x10", "invalid value: Invalid character 'x' in 0x10"),
    time(b".", "invalid value: Empty string"),
    time(b"-", "invalid value: Just a sign, no value: -"),
    time(b"99999999999999999999", "invalid value: Value too long: 99999999999999999999"),
    time(b"9223372036854775808", "invalid value: Overflow in 9223372036854775808"),
    time(b"10000000000000", BAD_TIME.format(10000000000000), ILLEGAL_ARGUMENT),
    time(b"9999999999999", BAD_TIME.format(9999999999999), ILLEGAL_ARGUMENT),
    time(b"4294969200000", BAD_TIME.format(4294969200000), ILLEGAL_ARGUMENT),
    time(b"1500000000.5000", BAD_TIME.format(15000000005000), ILLEGAL_ARGUMENT),
    time(b"1500000.000.5", "illegal argument: invalid timestamp: 1500000.000.5: one dot at most", ILLEGAL_ARGUMENT),
    # value
    value(b"abc", "invalid value: Invalid character 'a' in abc"),
    value(b"1x", "invalid value: Invalid character 'x' in 1x"),
    value(b"0x10", "invalid value: Invalid character 'x' in 0x10"),
    value(b"nan", "invalid value: Invalid character 'n' in nan"),
    value(b"NaN", "invalid value: Invalid character 'N' in NaN"),
    value(b"-Infinity", "invalid value: Invalid character 'I' in -Infinity"),
    value(b"1,5", "invalid value: Invalid character ',' in 1,5"),
    value(b"1_000", "invalid value: Invalid character '_' in 1_000"),
    value(b"1_000.5", 'invalid value: For input string: "1_000.5"'),
    value(b"1L", "invalid value: Invalid character 'L' in 1L"),
    value(b"1.5L", 'invalid value: For input string: "1.5L"'),
    value(b"+", "invalid value: Just a sign, no value: +"),
    value(b".", 'invalid value: For input string: "."'),
    value(b"e", 'invalid value: For input string: "e"'),
    value(b"1e", 'invalid value: For input string: "1e"'),
    value(b"1.2.3", "invalid value: multiple points"),
    value(b"true", 'invalid value: For input string: "true"'),
    value(b"9223372036854775808", "invalid value: Overflow in 9223372036854775808"),
    value(b"-9223372036854775809", "invalid value: Overflow in -9223372036854775809"),
    value(b"00000000000000000001", "invalid value: Value too long: 00000000000000000001"),
    value(b"1e400", f"illegal argument: value is NaN or Infinite: Infinity for metric=m timestamp={T.decode()}",
          ILLEGAL_ARGUMENT),
    value(b"-1e400", f"illegal argument: value is NaN or Infinite: -Infinity for metric=m timestamp={T.decode()}",
          ILLEGAL_ARGUMENT),
    # names
    Case(b"put a:b " + T + b" 1 a=b", 'illegal argument: Invalid metric name ("a:b"): illegal character: :'),
    Case(b"put a=b " + T + b" 1 a=b", 'illegal argument: Invalid metric name ("a=b"): illegal character: ='),
    Case(b"put m\t " + T + b" 1 a=b", 'illegal argument: Invalid metric name ("m\t"): illegal character: \t'),
    Case(b"put m\0 " + T + b" 1 a=b", 'illegal argument: Invalid metric name ("m\0"): illegal character: \0'),
    tags(b"a$=b", 'illegal argument: Invalid tag name with value [b] ("a$"): illegal character: $'),
    tags(b"a=*", 'illegal argument: Invalid tag value with key [a] ("*"): illegal character: *'),
    tags(b"a=b,c", 'illegal argument: Invalid tag value with key [a] ("b,c"): illegal character: ,'),
    tags(b"a=b\r\r", 'illegal argument: Invalid tag value with key [a] ("b\r"): illegal character: \r'),
    # tags
    tags(b"", "illegal argument: Need at least one tag (metric=m, tags={})"),
    tags(b"   ", "illegal argument: Need at least one tag (metric=m, tags={})"),
    tags(b"a", "illegal argument: invalid tag: a"),
    tags(b"a=", "illegal argument: invalid tag: a="),
    tags(b"=b", "illegal argument: invalid tag: =b"),
    tags(b"a==b", "illegal argument: invalid tag: a==b"),
    tags(b"a=b=c", "illegal argument: invalid tag: a=b=c"),
    tags(b"a=b c", "illegal argument: invalid tag: c"),
    tags(b"a=b a=c", "illegal argument: duplicate tag: a=c, tags={a=b}"),
    tags(b"a=b c=d a=x", "illegal argument: duplicate tag: a=x, tags={a=b, c=d}"),
    tags(NINE.encode(), "illegal argument: Too many tags: 9 maximum allowed: 8, tags: {"
         + NINE.replace(" ", ", ") + "}"),
    # encoding
    Case("put métrique.é ".encode() + T + b" 1 a=b",
         'illegal argument: Invalid metric name ("métrique.é"): illegal character: \\xa9' + IS_UTF_8),
    Case(b"put m " + T + " 1 a=中".encode(),
         'illegal argument: Invalid tag value with key [a] ("中"): illegal character: \\xb8' + IS_UTF_8),
    Case(b"put \xd7 " + T + b" 1 a=b", 'illegal argument: Invalid metric name ("×"): illegal character: ×'),
    # order: the first failing check determines the reply
    Case(b"put a:b x y z", "invalid value: Invalid character 'x' in x", INVALID_VALUE),
    Case(b"put a:b " + T + b" y z", "illegal argument: invalid tag: z"),
    Case(b"put a:b " + T + b" y a=b", "invalid value: Invalid character 'y' in y", INVALID_VALUE),
    Case(b"put a:b 10000000000000 1 a=b",
         "illegal argument: bad timestamp=10000000000000 when trying to add value=[1]/0 to metric=a:b, tags={a=b}"),
    Case(b"put a:b " + T + b" 1 a=*", 'illegal argument: Invalid metric name ("a:b"): illegal character: :'),
    # length
    Case(b"put m " + T + b" 1 a=" + b"x" * 20_000, "illegal argument: line too long: more than 16384 bytes",
         LINE_TOO_LONG),
    # names without UID
    Case(b"put typo " + T + b" 1 a=b", "unknown metric: No such name for 'metrics': 'typo'", UNKNOWN_NAME),
    Case(b"put m " + T + b" 1 typo=b", "unknown metric: No such name for 'tagk': 'typo'", UNKNOWN_NAME),
    Case(b"put m " + T + b" 1 a=typo", "unknown metric: No such name for 'tagv': 'typo'", UNKNOWN_NAME),
]  # fmt: skip

CLOSED = {
    "tsd.core.auto_create_metrics": "false",
    "tsd.core.auto_create_tagks": "false",
    "tsd.core.auto_create_tagvs": "false",
}


async def known(daemon: Running) -> None:
    """Assign the names of the valid lines."""
    uids = make_uids(daemon.daemon.config, daemon.daemon.store)
    await uids.find_or_assign(Kind.METRIC, [b"good"])
    await uids.find_or_assign(Kind.METRIC, [b"m"])
    await uids.find_or_assign(Kind.TAGK, [b"a", *(b"k%d" % n for n in range(9))])
    await uids.find_or_assign(Kind.TAGV, [b"b", b"c"])


def test_table_has_enough_cases() -> None:
    assert len(CASES) >= 60
    assert len({case.line for case in CASES}) == len(CASES)


@pytest.fixture(params=["alone", "in a block of many"])
def around(request: pytest.FixtureRequest) -> int:
    """Number of valid lines before and after each bad one: few are parsed one by one, many as a batch."""
    return 1 if request.param == "alone" else 30


@pytest.mark.difference(
    "several-dots",
    topic="points",
    theirs="A timestamp may have several dots",
    ours="A timestamp has one dot at most",
)
async def test_bad_line_refused_and_neighbours_stored(tmp_path: Path, around: int) -> None:
    async with running(tmp_path, CLOSED) as daemon:
        await known(daemon)
        stored = 0
        async with daemon.client() as client:
            for case in CASES:
                before = await client.stats()
                good = [b"put good %d 7 a=b\n" % (1_500_000_000 + stored + n) for n in range(2 * around)]
                answer = await converse(client, good[:around], case, good[around:])
                stored += 2 * around
                assert answer == f"put: {case.reply}\nsynced {stored}\n", case
                after = await client.stats()
                changed = {name: after[name] - before[name] for name in after if name.startswith("ledger.refused")}
                assert {name: n for name, n in changed.items() if n} == {f"ledger.refused reason={case.reason}": 1}
                assert after["ledger.received"] - before["ledger.received"] == 2 * around + 1
        assert await daemon.daemon.flush()
        assert await points_of(daemon) == stored
        ledger = daemon.daemon.ingest.ledger
        assert ledger.stored == stored
        assert ledger.balance(daemon.daemon.ingest.writer.waiting_points) == 0


async def converse(client: Client, before: list[bytes], case: Case, after: list[bytes]) -> str:
    return (await client.send_lines(b"".join([*before, case.line + b"\n", *after]))).decode("utf-8")


async def points_of(daemon: Running) -> int:
    """Count the points in the data table: each has one value byte here, and joined cells have one more."""
    count = 0
    async for rows in scan(daemon.daemon.store, daemon.daemon.config.data_table):
        for row in rows:
            assert row.key.startswith(b"\0\0\1")
            count += sum((len(cell.column) - 2) // 2 for cell in row.cells)
    return count
