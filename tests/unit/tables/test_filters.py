"""Filters: which values pass. What OpenTSDB lets pass is held against its own classes elsewhere."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.errors import BadQuery
from tsd.tables.filters import TYPES, Filter, identity, make_filter, matcher_of, read_filter
from tsd.tables.quirks import CORRECTED, quirks_for


def passes(kind: str, expression: str, value: str, *, corrected: bool = False) -> bool:
    return matcher_of(
        make_filter("k", kind, expression, quirks=quirks_for(corrected)), loose_wildcards=not corrected
    ).matches(value)


@pytest.mark.parametrize(
    ("kind", "expression", "value", "wanted"),
    [
        ("literal_or", "a|b", "b", True),
        ("literal_or", "a|b", "B", False),
        ("iliteral_or", "A|b", "a", True),
        ("not_literal_or", "a|b", "B", True),
        ("not_iliteral_or", "A|b", "B", False),
        ("wildcard", "w*1", "web1", True),
        ("wildcard", "*", "", True),
        ("wildcard", "***", "x", True),
        ("wildcard", "W*", "web", False),
        ("iwildcard", "W*", "web", True),
        ("iwildcard", "*B-0*", "web-03", True),
        ("regexp", "0[1-3]$", "web02", True),
        ("regexp", "^eb", "web02", False),
    ],
)
def test_filter_passes_values(kind: str, expression: str, value: str, wanted: bool) -> None:
    assert passes(kind, expression, value) is wanted
    assert passes(kind, expression, value, corrected=True) is wanted


@pytest.mark.difference(
    "wildcard-pieces",
    topic="corrected",
    theirs="The wildcard `a*b` passes `xaby`, and `*b*a*` passes `xab`",
    ours="the pieces must occur in order, from the start to the end",
)
@pytest.mark.parametrize(("expression", "value"), [("a*b", "xaby"), ("b*a", "xbya"), ("*b*a*", "xab"), ("a*b", "ba b")])
def test_wildcard_is_anchored_if_corrected(expression: str, value: str) -> None:
    assert passes("wildcard", expression, value)
    assert not passes("wildcard", expression, value, corrected=True)


@given(st.text("ab*", min_size=1, max_size=6).filter(lambda text: "*" in text), st.text("ab", max_size=6))
def test_corrected_wildcard_matches_in_order(expression: str, value: str) -> None:
    wanted = re.fullmatch(re.escape(expression).replace(r"\*", ".*"), value) is not None
    assert passes("wildcard", expression, value, corrected=True) is wanted


@given(st.text("ab*", min_size=1, max_size=6).filter(lambda text: "*" in text), st.text("ab", max_size=6))
def test_corrected_wildcard_is_stricter(expression: str, value: str) -> None:
    assert passes("wildcard", expression, value) or not passes("wildcard", expression, value, corrected=True)


def test_only_literal_or_has_literals() -> None:
    assert matcher_of(Filter("k", "literal_or", "a|b||a|")).literals == ("a", "b", "")
    assert all(not matcher_of(Filter("k", kind, "a*")).literals for kind in TYPES if kind != "literal_or")


def test_not_key_passes_no_value() -> None:
    matcher = matcher_of(make_filter("k", "not_key", "", quirks=CORRECTED))
    assert matcher.wants_no_key
    assert not matcher.matches("x")


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("*", Filter("k", "wildcard", "*", True, True)),
        ("w*", Filter("k", "wildcard", "w*", True, True)),
        ("a|b", Filter("k", "literal_or", "a|b", True)),
        ("IWildcard(W*)", Filter("k", "iwildcard", "W*", True)),
        ("literal_or(b)c)", Filter("k", "literal_or", "b)c", True)),
    ],
)
def test_values_in_braces_are_filters(value: str, wanted: Filter) -> None:
    assert read_filter("k", value, group_by=True) == wanted


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("foo(a)", "Could not find a tag value filter of the type: foo"),
        ("foo(a", "Filter must end with a ')': foo(a"),
        ("(a)", "The filter type cannot be null or empty"),
        ("literal_or()", "Filter cannot be null or empty"),
        ("literal_or(|)", "Filter must contain more than just a pipe"),
        ("wildcard(a)", "Filter must contain an asterisk"),
        ("", "Filter cannot be null or empty"),
    ],
)
def test_invalid_filter_is_refused(value: str, message: str) -> None:
    with pytest.raises(BadQuery) as refused:
        read_filter("k", value, group_by=False)
    assert refused.value.message == message


def test_identity_is_opentsdbs_equality() -> None:
    assert identity(Filter("k", "literal_or", "a|b")) == identity(Filter("k", "literal_or", "b|a", True))
    assert identity(Filter("k", "wildcard", "A*", ignore_case=True)) == identity(Filter("k", "iwildcard", "*a"))
    assert identity(Filter("k", "literal_or", "a")) != identity(Filter("k", "iliteral_or", "a"))
    assert identity(Filter("k", "wildcard", "a*b")) != identity(Filter("k", "wildcard", "a**b"))


def test_regexp_is_searched_in_values() -> None:
    test = matcher_of(Filter("k", "regexp", "1[0-3]?$")).matches
    assert [at for at in range(20) if test(f"web{at}")] == [1, 10, 11, 12, 13]


def test_lone_asterisk_passes_all() -> None:
    assert matcher_of(Filter("k", "wildcard", "*")).passes_all
