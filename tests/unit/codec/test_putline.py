"""What a put line says, beyond the vectors (test_vectors_lines.py)."""

import sys

import pytest

from tsd.codec.putline import NameRules, PutLine, parse_put, show_tags, split_tags
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, BadLine


def test_line_has_metric_time_value_and_tags() -> None:
    line = b"put sys.cpu.user 1356998400500 42.5 host=web01  cpu=0 "
    assert parse_put(line, NameRules()) == PutLine(
        b"sys.cpu.user", ((b"host", b"web01"), (b"cpu", b"0")), 1356998400500, 11, bytes.fromhex("422a0000")
    )  # fmt: skip


def test_first_word_is_ignored() -> None:
    assert parse_put(b"x m 1 1 a=b", NameRules()) == parse_put(b"put m 1 1 a=b", NameRules())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"put", ILLEGAL_ARGUMENT),
        (b"put m x 1 a=b", INVALID_VALUE),
        (b"put m 0 1 a=b", ILLEGAL_ARGUMENT),
        (b"put m 1 x a=b", INVALID_VALUE),
        (b"put m 1 1e999 a=b", ILLEGAL_ARGUMENT),
        (b"put m: 1 1 a=b", ILLEGAL_ARGUMENT),
    ],
)
def test_invalid_line_has_a_reason_code(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine) as refused:
        parse_put(line, NameRules())
    assert refused.value.reason == reason


def test_checks_run_in_opentsdbs_order() -> None:
    """Each line below lacks the fault that the one above is refused for."""
    lines = {
        b"put : x x a": "invalid value: Invalid character 'x' in x",
        b"put : 99999999999999 x a": "illegal argument: invalid tag: a",
        b"put : 99999999999999 x ": "invalid value: Invalid character 'x' in x",
        b"put : 99999999999999 1 ": (
            "illegal argument: bad timestamp=99999999999999 when trying to add value=[1]/0 to metric=:, tags={}"
        ),
        b"put : 1 1 ": "illegal argument: Need at least one tag (metric=:, tags={})",
        b"put : 1 1 a=:": 'illegal argument: Invalid metric name (":"): illegal character: :',
        b"put m 1 1 a=:": 'illegal argument: Invalid tag value with key [a] (":"): illegal character: :',
    }
    for line, message in lines.items():
        with pytest.raises(BadLine) as refused:
            parse_put(line, NameRules())
        assert str(refused.value) == message


def test_rules_allow_more_characters_and_fewer_tags() -> None:
    assert parse_put(b"put a:b 1 1 c:d=e:f", NameRules(extra=b":")).metric == b"a:b"
    with pytest.raises(BadLine, match=r"Too many tags: 2 maximum allowed: 1, tags: \{a=1, b=2\}"):
        parse_put(b"put m 1 1 a=1 b=2", NameRules(max_tags=1))


def test_errors_show_tags_in_map_order() -> None:
    tags = split_tags(b"t1=v t4=v t1=v")
    assert tags == ((b"t1", b"v"), (b"t4", b"v"))
    assert show_tags(tags) == "{t4=v, t1=v}"


def test_order_of_large_tag_sets_is_not_cached() -> None:
    """Regression: refused lines have sets of any size, and a thousand of them were cached."""
    many = tuple((b"k%d" % at, b"v") for at in range(200))
    long = ((b"a" * 2000, b"v"), (b"b", b"v"))
    few = ((b"a" * 20, b"v"), (b"b", b"v"))
    before = [sys.getrefcount(tags[0][0]) for tags in (many, long, few)]
    assert [show_tags(tags).count("=") for tags in (many, long, few)] == [200, 2, 2]
    after = [sys.getrefcount(tags[0][0]) for tags in (many, long, few)]
    assert after == [before[0], before[1], before[2] + 1]  # the cache refers to a small set


@pytest.mark.difference(
    "tags-in-a-line",
    topic="limits",
    theirs="A put line may have any number of tags, and all are looked at before the line is refused",
    ours="A put line with more than 10,000 tags is refused before they are looked at",
)
def test_line_with_too_many_tags_is_refused() -> None:
    tags = [b"k%d=v" % at for at in range(10_001)]
    assert len(split_tags(b" ".join(tags[:-1]))) == 10_000
    with pytest.raises(BadLine, match=r"\b10001\b"):
        parse_put(b"put m 1 1 " + b" ".join(tags), NameRules(max_tags=20_000))


@pytest.mark.difference(
    "tags-in-messages",
    topic="limits",
    theirs="An error message shows all tags of a line",
    ours="It shows at most 256 tags, and how many more there are",
)
def test_errors_show_some_of_many_tags() -> None:
    tags = split_tags(b" ".join(b"k%d=v" % at for at in range(1000)))
    assert show_tags(tags[:256]).count("=v") == 256
    shown = show_tags(tags)
    assert shown.count("=v") == 256
    assert "744" in shown
