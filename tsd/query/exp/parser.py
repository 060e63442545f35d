"""Compiles an expression to steps of a stack machine: the used part of Apache JEXL 2.1, the language of OpenTSDB.

It has numbers, variables, arithmetic, comparisons, logic, choices and sequences, but no functions, methods or loops:
an expression reaches nothing but numbers. Text and nesting are bounded.
"""

import re
from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import NamedTuple

import numpy as np

from tsd.errors import TsdError

MAX_TEXT = 10_000
MAX_DEPTH = 40
_END = ""
_TOKEN = re.compile(
    r"(?P<blank>[ \t\n\r\f]+|/\*.*?\*/|(?://|##)[^\n]*)"
    r"|(?P<number>0[xX][0-9a-fA-F]+[lLhH]?|[0-9]+\.[0-9]+(?:[eE][-+]?[0-9]+)?[fFdDbB]?|[0-9]+[lLhH]?)"
    r"|(?P<name>[A-Za-z_$@][A-Za-z0-9_$@]*)"
    r"|(?P<sign>\?:|&&|\|\||[=!<>]=|[-+*/%!<>?:;(){}])",
    re.DOTALL,
)
# Words that mean a sign.
_WORDS = {
    "and": "&&", "or": "||", "not": "!", "div": "/", "mod": "%", "eq": "==", "ne": "!=", "lt": "<", "le": "<=",
    "gt": ">", "ge": ">=",
}  # fmt: skip
_RESERVED = frozenset(
    "if else true false null var return while for foreach in break continue new empty size".split()
) | frozenset(_WORDS)
_COMPARISONS = frozenset({"<", "<=", ">", ">="})
_EQUALITIES = frozenset({"==", "!="})
_SUMS = frozenset({"+", "-"})
_PRODUCTS = frozenset({"*", "/", "%"})
_UNARY = frozenset({"-", "!"})


class ValueKind(Enum):
    """The kind of a value, with Java's name, which messages show."""

    DOUBLE = "java.lang.Double"
    FLOAT = "java.lang.Float"  # only a literal is one: the result of arithmetic with it is a double
    INTEGER = "java.lang.Integer"  # and Long, and BigInteger: it never overflows
    BOOLEAN = "java.lang.Boolean"
    NOTHING = "null"  # of an `if` without `else`
    ERROR = "error"  # the result of an impossible operation; harmless if a choice does not use it


class BadExpression(TsdError):
    """A text is no expression."""


class Literal(NamedTuple):
    """A number or boolean in the text."""

    kind: ValueKind
    value: float | int | bool


class Variable(NamedTuple):
    """A metric or another expression."""

    name: str


class Operation(NamedTuple):
    """Replaces the topmost `operands` values by one. Of two operands: + - * / % == != < <= > >= && ||. Of one: - and
    !. `?` has a condition and two alternatives. `=` duplicates the topmost value."""

    sign: str
    operands: int


Step = Literal | Variable | Operation
NOTHING = Literal(ValueKind.NOTHING, False)


class Expression(NamedTuple):
    """A compiled expression: its steps leave one value. `names` are all variables in order of appearance, also of
    statements whose value is dropped."""

    steps: tuple[Step, ...]
    names: tuple[str, ...]


class _Token(NamedTuple):
    kind: str
    text: str
    at: int  # where it begins


def parse(text: str, *, singles: bool = True) -> Expression:
    """Return the steps of a text; `singles`: literals with a point are 32-bit floats. Raise BadExpression.

    >>> parse("a + b * 2").names
    ('a', 'b')
    """
    if len(text) > MAX_TEXT:
        raise BadExpression(f"an expression of {len(text)} characters, wanted at most {MAX_TEXT}")
    return _ExpressionParser(text, singles=singles).script()


def single(number: str) -> float:
    """Convert a literal that is a 32-bit float to the double of its shortest text, as Java's arithmetic does.

    >>> single("0.1"), single("0.123456789")
    (0.1, 0.12345679)
    """
    return float(str(np.float32(number)))


def _literal(text: str, *, singles: bool) -> Literal:
    if "." in text:
        body, suffix = (text, "") if text[-1].isdigit() else (text[:-1], text[-1].lower())
        is_double = not singles or suffix in ("d", "b")
        return Literal(ValueKind.DOUBLE, float(body)) if is_double else Literal(ValueKind.FLOAT, single(body))
    digits = text.rstrip("lLhH")
    if digits[:2].lower() == "0x":
        return Literal(ValueKind.INTEGER, int(digits, 16))
    return Literal(ValueKind.INTEGER, int(digits, 8 if len(digits) > 1 and digits[0] == "0" else 10))


class _ExpressionParser:
    """Recursive-descent parser of one text."""

    def __init__(self, text: str, *, singles: bool) -> None:
        self._text = text
        self._singles = singles
        self._depth = 0
        self._names: dict[str, None] = {}
        self._steps: list[Step] = []
        self._tokens = list(self._scan())
        self._next = 0

    def script(self) -> Expression:
        """Parse the whole text."""
        self._statements(_END)
        return Expression(tuple(self._steps), tuple(self._names))

    def _scan(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None or match.lastgroup is None:
                raise self._error(at)
            if match.lastgroup != "blank":
                yield self._token(match.lastgroup, match[0], at)
            at = match.end()
        yield _Token("end", _END, at)

    @staticmethod
    def _token(kind: str, text: str, at: int) -> _Token:
        if kind == "name" and text in _WORDS:
            return _Token("sign", _WORDS[text], at)
        return _Token("word" if kind == "name" and text in _RESERVED else kind, text, at)

    def _statements(self, end: str) -> None:
        """Parse statements up to `end`, separated by semicolons; only the value of the last counts."""
        start = len(self._steps)
        while self._peek != end:
            if not self._take(";"):
                del self._steps[start:]
                self._statement()
        if len(self._steps) == start:
            raise self._syntax_error()

    def _statement(self) -> None:
        if self._take("{"):
            self._nested(lambda: self._statements("}"))
            self._expect("}")
        elif self._take("if"):
            self._nested(self._if)
        else:
            self._expression()
            if self._peek not in (_END, ";", "}", "else"):
                raise self._syntax_error()

    def _if(self) -> None:
        self._expect("(")
        self._expression()
        self._expect(")")
        self._statement()
        self._take(";")
        if self._take("else"):
            self._statement()
        else:
            self._steps.append(NOTHING)
        self._operate("?", 3)

    def _expression(self) -> None:
        self._nested(self._ternary)

    def _ternary(self) -> None:
        self._logical_or()
        if self._take("?:"):
            self._operate("=", 1)
            self._expression()
            self._operate("?", 3)
        elif self._take("?"):
            self._expression()
            self._expect(":")
            self._expression()
            self._operate("?", 3)

    def _logical_or(self) -> None:
        self._logical_and()
        while self._take("||"):
            self._logical_and()
            self._operate("||", 2)

    def _logical_and(self) -> None:
        self._equality()
        while self._take("&&"):
            self._equality()
            self._operate("&&", 2)

    def _equality(self) -> None:
        self._comparison()
        if sign := self._take_one_of(_EQUALITIES):  # once: the language has no `a == b == c`
            self._comparison()
            self._operate(sign, 2)

    def _comparison(self) -> None:
        self._sum()
        if sign := self._take_one_of(_COMPARISONS):
            self._sum()
            self._operate(sign, 2)

    def _sum(self) -> None:
        self._product()
        while sign := self._take_one_of(_SUMS):
            self._product()
            self._operate(sign, 2)

    def _product(self) -> None:
        self._unary()
        while sign := self._take_one_of(_PRODUCTS):
            self._unary()
            self._operate(sign, 2)

    def _unary(self) -> None:
        sign = self._take_one_of(_UNARY)
        if not sign:
            self._primary()
            return
        self._nested(self._unary)
        operand = self._steps[-1]
        if sign == "-" and isinstance(operand, Literal) and operand.kind is not ValueKind.BOOLEAN:
            self._steps[-1] = Literal(operand.kind, -operand.value)
        else:
            self._operate(sign, 1)

    def _primary(self) -> None:
        token = self._tokens[self._next]
        if token.kind == "number":
            try:
                self._steps.append(_literal(token.text, singles=self._singles))
            except ValueError as exc:  # 09 is no octal number
                raise self._syntax_error() from exc
        elif token.kind == "name":
            self._names[token.text] = None
            self._steps.append(Variable(token.text))
        elif token.kind == "word" and token.text in ("true", "false"):
            self._steps.append(Literal(ValueKind.BOOLEAN, token.text == "true"))
        elif token.text != "(":
            raise self._syntax_error()
        self._next += 1
        if token.text == "(":
            self._expression()
            self._expect(")")

    def _operate(self, sign: str, operands: int) -> None:
        self._steps.append(Operation(sign, operands))

    def _nested(self, read: Callable[[], None]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadExpression(f"an expression nested deeper than {MAX_DEPTH} levels")
        read()
        self._depth -= 1

    @property
    def _peek(self) -> str:
        return self._tokens[self._next].text

    def _take(self, text: str) -> bool:
        return bool(self._take_one_of((text,)))

    def _take_one_of(self, texts: Collection[str]) -> str:
        """Consume and return the next token if it is one of `texts`; else return an empty text."""
        token = self._tokens[self._next]
        if token.text not in texts or token.kind == "end":
            return ""
        self._next += 1
        return token.text

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._syntax_error()

    def _syntax_error(self) -> BadExpression:
        return self._error(self._tokens[self._next].at)

    def _error(self, at: int) -> BadExpression:
        return BadExpression(f"expression@1:{at} parsing error in '{self._text}'")
