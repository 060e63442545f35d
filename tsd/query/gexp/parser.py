"""Parses a `gexp` expression into function calls, metric queries and words.

`name ( argument {, argument} )`: an argument is a call, a metric query `agg:[x:][y:]metric[{k=v,…}]`, or a word. Text
after the call is ignored, as in OpenTSDB. Text and nesting are bounded.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tsd.errors import BadQuery

MAX_TEXT = 10_000
MAX_DEPTH = 40
_BLANK = re.compile(r"\s*")
_NAME = re.compile(r"[A-Za-z0-9\-_#/$@|.'\[\]]+")
_PAIR = rf"\s*{_NAME.pattern}\s*=\s*(?:{_NAME.pattern}|\*)\s*"
_METRIC = re.compile(rf"(?:{_NAME.pattern}\s*:\s*){{1,3}}{_NAME.pattern}(?:\s*\{{{_PAIR}(?:,{_PAIR})*\}})?")
_SPACE = re.compile(r"\s+")


class MetricQuery(NamedTuple):
    """The result of a sub query."""

    text: str  # as `m` would have it
    place: int  # among the metric queries of a request


@dataclass(frozen=True)
class Call:
    """A function with its operands, and separately its words."""

    function: str
    operands: Sequence["Call | MetricQuery"]
    words: Sequence[str]


class Expressions(NamedTuple):
    """The expressions of a request, and all their metric queries in order of appearance."""

    calls: list[Call]
    queries: list[str]


def parse(texts: Sequence[str], functions: Callable[[str], bool]) -> Expressions:
    """Parse the expressions of a request; `functions` tests names. Raise BadQuery with status 500.

    >>> parse(["scale(sum:1m-avg:a.b{host=*},2)"], {"scale"}.__contains__).queries
    ['sum:1m-avg:a.b{host=*}']
    """
    queries: list[str] = []
    return Expressions([_FunctionParser(text, functions, queries).expression() for text in texts], queries)


class _FunctionParser:
    """Parser of one expression."""

    def __init__(self, text: str, functions: Callable[[str], bool], queries: list[str]) -> None:
        self._text = text
        self._functions = functions
        self._queries = queries
        self._at = 0
        self._depth = 0

    def expression(self) -> Call:
        """Parse the call at the start of the text."""
        if len(self._text) > MAX_TEXT:
            raise BadQuery(f"an expression of {len(self._text)} characters, wanted at most {MAX_TEXT}", status=500)
        return self._call()

    def _call(self) -> Call:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadQuery(f"an expression nested deeper than {MAX_DEPTH} levels", status=500)
        function = self._take(_NAME)
        if not function:
            raise self._syntax_error()
        if not self._functions(function):
            raise BadQuery(f"Function {function} has not been implemented", status=500)
        self._expect("(")
        operands: list[Call | MetricQuery] = []
        words: list[str] = []
        while True:
            self._argument(operands, words)
            if not self._starts_with(","):
                break
        self._expect(")")
        self._depth -= 1
        return Call(function, tuple(operands), tuple(words))

    def _argument(self, operands: list[Call | MetricQuery], words: list[str]) -> None:
        if query := self._take(_METRIC):
            text = _SPACE.sub("", query)
            operands.append(MetricQuery(text, len(self._queries)))
            self._queries.append(text)
            return
        before = self._at
        word = self._take(_NAME)
        if not word:
            raise self._syntax_error()
        if self._starts_with("("):
            self._at = before
            operands.append(self._call())
        else:
            words.append(word)

    def _take(self, pattern: re.Pattern[str]) -> str:
        """Consume what `pattern` matches after blanks; empty if it does not match."""
        start = self._blanks()
        found = pattern.match(self._text, start)
        if not found:
            return ""
        self._at = found.end()
        return found[0]

    def _starts_with(self, sign: str) -> bool:
        start = self._blanks()
        if not self._text.startswith(sign, start):
            return False
        self._at = start + len(sign)
        return True

    def _expect(self, sign: str) -> None:
        if not self._starts_with(sign):
            raise self._syntax_error()

    def _blanks(self) -> int:
        found = _BLANK.match(self._text, self._at)
        assert found is not None
        return found.end()

    def _syntax_error(self) -> BadQuery:
        return BadQuery(f"Failed to parse {self._text}", status=500)
