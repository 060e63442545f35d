"""The language of expressions, compared with the recorded results of an OpenTSDB."""

import math
import re

import numpy as np
import pytest

from tsd.query.exp.engine import hash_order
from tsd.query.exp.evaluate import BadResult, evaluate
from tsd.query.exp.parser import MAX_DEPTH, MAX_TEXT, BadExpression, parse, single

NAN = math.nan
A = np.array([-1.0, -8.0, -3.0, 5.0, -7.0, NAN])
B = np.array([1.0, 2.0, 2.5, 4.0, 5.0, 6.5])

# Observed on 2.4.1.
OBSERVED = {
    "a + b": [0.0, -6.0, -0.5, 9.0, -2.0, NAN],
    "a * 0.123456789": [-0.12345679, -0.98765432, -0.37037037, 0.61728395, -0.86419753, NAN],
    "a * 0.123456789d": [-0.123456789, -0.987654312, -0.370370367, 0.617283945, -0.864197523, NAN],
    "a * (1 / 2)": [-0.0, -0.0, -0.0, 0.0, -0.0, NAN],
    "a * 1 / 2": [-0.5, -4.0, -1.5, 2.5, -3.5, NAN],
    "a * (-7 % 3)": [-2.0, -16.0, -6.0, 10.0, -14.0, NAN],
    "a * (-7 / 2)": [3.0, 24.0, 9.0, -15.0, 21.0, NAN],
    "a * (7 % (-3))": [-0.0, -0.0, -0.0, 0.0, -0.0, NAN],
    "a / 0": [0.0] * 6,
    "a % 0.0": [0.0] * 6,
    "a % 3.5": [-1.0, -1.0, -3.0, 1.5, -0.0, NAN],
    "(a > b ? 1 : 0) + a": [-1.0, -8.0, -3.0, 6.0, -7.0, NAN],
    "a > b ? a : b": [1.0, 2.0, 2.5, 5.0, 5.0, 6.5],
    "a ?: b": [-1.0, -8.0, -3.0, 5.0, -7.0, 6.5],
    "a > 1": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
    "a < b": [1.0, 1.0, 1.0, 0.0, 1.0, 1.0],
    "!a": [0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    "a and b": [1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
    "a || b": [1.0] * 6,
    "-(a > b)": [1.0, 1.0, 1.0, 0.0, 1.0, 1.0],
    "(a > b) * 2.0": [0.0, 0.0, 0.0, 2.0, 0.0, 0.0],
    "(a > b) == 1": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
    "a == a": [1.0] * 6,
    "if (a > b) a else b": [1.0, 2.0, 2.5, 5.0, 5.0, 6.5],
    "if (a > b) {a} else {b}": [1.0, 2.0, 2.5, 5.0, 5.0, 6.5],
    "a; b;": [1.0, 2.0, 2.5, 4.0, 5.0, 6.5],
    "a div b": [-1.0, -4.0, -1.2, 1.25, -1.4, NAN],
    "b * 010": [8.0, 16.0, 20.0, 32.0, 40.0, 52.0],
    "b * 0x10": [16.0, 32.0, 40.0, 64.0, 80.0, 104.0],
    "b * (2147483647 + 1)": [2147483648.0, 4294967296.0, 5368709120.0, 8589934592.0, 10737418240.0, 13958643712.0],
    "b + 1.1 + 2.2": [4.300000000000001, 5.300000000000001, 5.800000000000001, 7.3, 8.3, 9.8],
    "b /* two */ + 1 ## and one": [2.0, 3.0, 3.5, 5.0, 6.0, 7.5],
    "a--b": [0.0, -6.0, -0.5, 9.0, -2.0, NAN],
    "b > 3 ? b : (a > 0) / 0": [0.0, 0.0, 0.0, 4.0, 5.0, 6.5],
}


@pytest.mark.parametrize(("text", "wanted"), OBSERVED.items(), ids=list(OBSERVED))
def test_values_are_those_of_opentsdb(text: str, wanted: list[float]) -> None:
    found = evaluate(parse(text), {"a": A, "b": B}, (6,))
    assert [repr(value) for value in found.tolist()] == [repr(value) for value in wanted]


@pytest.mark.difference(
    "expression-language",
    topic="queries",
    theirs="Expressions are all of JEXL: `while (a) a` occupies a thread without end, and `new(…)` creates any object",
    ours=(
        "They have numbers, arithmetic, comparisons, logic, choices and sequences. Their length and depth are bounded"
    ),
)
@pytest.mark.parametrize(
    "text",
    [
        *("", "a +", "(a", "a)", "a b", "a * .5", "a * 2.", "a * 1e3", "a * 1d", "a < b < 1", "a == b == 1", "+a"),
        *("a ? b", "a # b", "a, b", "x = a", "a.b", "a[0]", "'s' + a", "a.getClass()", "new('java.io.File')"),
        *("size(a)", "while (a) a", "math:abs(a)", "a + 09", "return a", "null"),
        *(
            "a + \u0663",
            "\u0663.\u0665 * a",
            "a + 1\u0663",
            "a + 1.5e\u0663",
            "a +\u00a01",
            "a +\v1",
        ),  # other digits, blanks
    ],
)
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(BadExpression, match=re.escape(f"parsing error in '{text}'")):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a > b ? 1 : 0", "Expression returned a result of type: java.lang.Integer"),
        ("a > b ? 1.5 : a", "Expression returned a result of type: java.lang.Float"),
        ("a > b ? 99999999999 : a", "Expression returned a result of type: java.lang.Long"),
        ("a > b ? 99999999999999999999 : a", "Expression returned a result of type: java.math.BigInteger"),
        ("if (a > b) a", "Expression returned a result of type: null"),
        ("(a > b) + 1", "'+' error"),
    ],
)
def test_result_that_is_no_double_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadResult, match=re.escape(message)):
        evaluate(parse(text), {"a": A, "b": B}, (6,))


def test_error_in_an_unused_alternative_is_ignored() -> None:
    assert evaluate(parse("a > 100 ? (a > b) + 1 : b"), {"a": A, "b": B}, (6,)).tolist() == B.tolist()
    assert evaluate(parse("b > 0 || (a > b) + 1"), {"a": A, "b": B}, (6,)).tolist() == [1.0] * 6


@pytest.mark.parametrize("boolean", ["(a > b)", "-false"])
def test_boolean_is_compared_with_an_integer_of_any_size(boolean: str) -> None:
    found = evaluate(parse(f"b + ({boolean} < 99999999999999999999 ? 1.0d : 2.0d)"), {"a": A, "b": B}, (6,))
    assert found.tolist() == (B + 1).tolist()


@pytest.mark.difference("expression-language")
def test_length_and_depth_are_bounded() -> None:
    with pytest.raises(BadExpression, match="characters"):
        parse("a" * (MAX_TEXT + 1))
    for nested in ("(" * 1000 + "a" + ")" * 1000, "-" * 1000 + "a", "if (a) " * 1000 + "a", "a ? " * 1000 + "a"):
        with pytest.raises(BadExpression, match=f"deeper than {MAX_DEPTH}"):
            parse(nested)
    long = "+".join(["a"] * (MAX_TEXT // 2))
    assert evaluate(parse(long), {"a": np.ones(3)}, (3,)).tolist() == [MAX_TEXT // 2] * 3


def test_literal_has_its_shortest_single_text() -> None:
    assert [single(text) for text in ("0.1", "16777217.0", "100000000.5", "0.30000001")] == [0.1, 16777216.0, 1e8, 0.3]


def test_variables_are_named_in_the_order_of_java_s_tables() -> None:
    """Observed: in whose tags an answer is named."""
    assert [hash_order(ids)[0] for ids in (["c", "d"], ["abc", "x1"], ["h", "c", "p"], ["foo", "bar", "baz"])] == [
        "d", "x1", "p", "bar",
    ]  # fmt: skip
