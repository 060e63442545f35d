"""Translation of Java's patterns, and the refusal of costly ones."""

import contextlib

import pytest

from tsd.codec.regex import LONGEST, BadPattern, compile_pattern, is_costly
from tsd.errors import BadQuery
from tsd.tables.filters import Filter, matcher_of


@pytest.mark.parametrize(
    ("pattern", "found", "missed"),
    [
        ("^web[0-9]+$", "web01", "xweb01"),
        ("(?i)^WEB|^DB", "db1", "a"),
        ("a(?i)b|C", "c", "Ab"),
        ("(a(?-i)b)c", "abc", "aBc"),
        (r"\p{Alpha}{3}", "abc", "ab1"),
        (r"^\P{Alpha}$", "1", "a"),
        (r"^\p{Lu}\pL$", "Éa", "éa"),
        (r"^\p{IsAlphabetic}+$", "é", "1"),
        ("^[a-z&&[^aeiou]]+$", "bcd", "bad"),
        ("^[a-c[x-z]]+$", "ax", "ad"),
        ("^[^a-c&&[b-d]]$", "z", "b"),
        (r"^[\w.-]+$", "a.b-c_1", "a b"),
        ("^[]a]+$", "]a", "b"),
        (r"^\Qa.b\E$", "a.b", "axb"),
        (r"^[\Q^]\E]$", "]", "a"),
        (r"^\x41\u0042\x{43}\0104$", "ABCD", "abcd"),
        ("^(?<first>a+)b\\k<first>$", "aabaa", "aaba"),
        (r"^(a|b)\1$", "aa", "ab"),
        (r"^\h$", "\t", "a"),
        (r"a\z", "ba", "ab"),
        ("^a++b$", "aab", "aa"),
        ("^(?>a|ab)c$", "ac", "abc"),
        ("(?<=web)1", "web1", "db1"),
        (r"^\w+$", "abc", "é"),
    ],
)
def test_pattern_matches_as_in_java(pattern: str, found: str, missed: str) -> None:
    compiled = compile_pattern(pattern)
    assert compiled.search(found)
    assert not compiled.search(missed)


@pytest.mark.difference("expensive-patterns")
@pytest.mark.parametrize(
    "pattern",
    [
        *("[", "(", "a)", "[a", "\\", "(?x)a b", r"\p{Nope}", r"\y", "[b-a]", "a**", "(?<=a+)b", r"\G", "(?P<a>b)"),
        *("(?<n>", "a" * (LONGEST + 1)),
    ],
    ids=lambda pattern: pattern[:10],
)
def test_invalid_or_unsupported_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        compile_pattern(pattern)


COSTLY = [
    *("(a+)+$", "(a*)*b", "(a|a)*b", "(a|ab|b)*c", "([a-z]+)*1", "(.*)*x", "^(\\w+\\s?)*$", "((ab?)+)+$", "(a?){50}b"),
    *("(?:a+b?)+c", "(x+x+)+y", "(.+.+)+1", "a*a*a*a*a*a*a*a*a*b", "(?=(a+)+$)", "(a+){5,9}b", "((a|b)+c?)+$"),
    *(
        "((a+){2})*b",
        "a*a*a*a*a*a*a*a*b",
        ".*.*.*.*.*x",
        "a?" * 30 + "a" * 30,
        "(?:a|aa)" * 30 + "b",
        "a{0,60}" * 9 + "b",
    ),
]


@pytest.mark.difference(
    "expensive-patterns",
    topic="queries",
    theirs="A regular expression such as `regexp((a+)+$)` may take exponential time",
    ours="It is refused, and so are the few forms without an equivalent (`(?x)`, `\\X`, `\\G`)",
)
@pytest.mark.parametrize("pattern", COSTLY)
def test_exponential_pattern_is_refused(pattern: str) -> None:
    assert is_costly(pattern)
    with pytest.raises(BadPattern, match="exponential"):
        compile_pattern(pattern)


HARMLESS = [
    *(
        "web.*",
        "^(\\w+\\.)+com$",
        "(?:foo|bar)*",
        "([a-z]+[0-9]+)+",
        "(\\d+-)*\\d+",
        "a{3}b{2,5}",
        ".*a.*b.*c",
        "(ab)+",
    ),
    *(
        "web.*(prod|test).*\\.com$",
        "^(.*-)?web[0-9]{0,3}\\..*$",
        "(a|b|c)(d|e)(f|g)",
        "^\\w+-\\w+-\\w+\\.\\w+$",
        "a?b?c?d?e?f?",
    ),
    *("^(?:[^.]+\\.){2}x", "((a|b)c)+", "(?:a|b)*c", "web(01|02|1\\d)$", "(?:\\d{1,3}\\.){3}\\d{1,3}"),
]


def test_pattern_slow_on_long_values_is_refused_there() -> None:
    for loose in (True, False):
        test = matcher_of(Filter("k", "regexp", "(?!c)a+a+b"), loose_wildcards=loose).matches
        assert not test("a" * 60)
        with pytest.raises(BadQuery, match="too long on a value of 10000 characters"):
            test("a" * 10_000)
    assert not matcher_of(Filter("k", "regexp", "^[a-z]+[0-9]$")).matches("a" * 10_000)


@pytest.mark.parametrize("pattern", ["(a+)(a+)(a+)!", r"^(\w+)(\w+)(\w+)!", "a+a+b", r"(?i)(A+)(a*?)\B(a|aa){2,3}!$"])
def test_plain_pattern_takes_linear_time(pattern: str) -> None:
    search = compile_pattern(pattern).search
    assert not search("a" * 20_000)  # returns: with a backtracking matcher it would take hours


@pytest.mark.parametrize("pattern", HARMLESS)
def test_harmless_pattern_is_accepted(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    for value in ("a" * 60, "ab" * 30, "a1" * 30, "1." * 30, "a." * 30, "abc" * 20 + "!"):
        compiled.search(value)  # returns: it would take years if it were exponential


def test_deeply_nested_pattern_is_handled() -> None:
    for pattern in ("[" * LONGEST, "(" * LONGEST, "[^a]" * (LONGEST // 4)):
        with contextlib.suppress(BadPattern):
            compile_pattern(pattern)
