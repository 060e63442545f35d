"""The value of an expression for whole series at once, with the arithmetic of Apache JEXL 2.1.

Variables are doubles, so nearly everything is. What a choice between literals leaves is kept apart by its kind, moment
by moment: integers divide as such, and a result that is no double in the end is refused, as OpenTSDB does.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.query.exp.language import Expression, Kind, Literal, Operation, Variable
from tsd.query.points import Bool, Float64

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_LONG = 1 << 63
_INTEGER = 1 << 31


class BadResult(Exception):
    """An expression whose value is none of a series; says why."""


class Part(NamedTuple):
    """The moments at which a value is of one kind."""

    where: Bool | None  # None: all
    data: Any  # a scalar or an array; of Python's integers for Kind.INTEGER, of doubles for DOUBLE and FLOAT


Value = Mapping[Kind, Part]


def evaluate(expression: Expression, variables: Mapping[str, Float64], shape: tuple[int, ...]) -> Float64:
    """The result at every moment: an array of `shape`, to which the variables broadcast. Truth is 1.0. Raises
    BadResult."""
    if 0 in shape:  # no moment at which anything could be wrong
        return np.zeros(shape)
    stack: list[Value] = []
    with np.errstate(all="ignore"):
        for step in expression.steps:
            match step:
                case Literal(kind, value):
                    stack.append({kind: Part(None, value)})
                case Variable(name):
                    stack.append({Kind.DOUBLE: Part(None, variables[name])})
                case Operation("=", _):
                    stack.append(stack[-1])
                case Operation(sign, operands):
                    taken = stack[-operands:]
                    del stack[-operands:]
                    stack.append(_operate(sign, taken))
    return _result(stack.pop(), shape)


def depth(expression: Expression) -> int:
    """How many values there are at once while it is evaluated."""
    deepest = now = 0
    for step in expression.steps:
        now += 1 if not isinstance(step, Operation) or step.sign == "=" else 1 - step.operands
        deepest = max(deepest, now)
    return deepest


def _operate(sign: str, operands: Sequence[Value]) -> Value:
    if len(operands) == 1:
        return _with_errors(operands[0], _negated(operands[0]) if sign == "-" else _truth(~_true(operands[0])))
    if sign == "?":
        return _with_errors(operands[0], _chosen(*operands))
    left, right = operands
    if sign == "&&":
        return _decided(left, right, _true(left), _true(left) & _true(right))
    if sign == "||":
        return _decided(left, right, ~_true(left), _true(left) | _true(right))
    if sign in _COMPARE:
        return _each(left, right, lambda a, one, b, two: _compared(sign, a, one, b, two))
    return _each(left, right, lambda a, one, b, two: _calculated(sign, a, one, b, two))


def _each(left: Value, right: Value, operate: Callable[[Kind, Any, Kind, Any], list[tuple[Kind, Part]]]) -> Value:
    """An operation on each pair of kinds that meet somewhere; an error on either side is one of both."""
    found: list[tuple[Kind, Part]] = []
    for one, a in left.items():
        for two, b in right.items():
            where = _and(a.where, b.where)
            if where is not None and not where.any():
                continue
            if Kind.ERROR in (one, two):
                found.append((Kind.ERROR, Part(where, a.data if one is Kind.ERROR else b.data)))
                continue
            parts = operate(one, a.data, two, b.data)
            found += [(kind, Part(_and(where, own), data)) for kind, (own, data) in parts]
    return _merged(found)


def _decided(left: Value, right: Value, undecided: Bool, truth: Bool) -> Value:
    """The truth of both sides; the right one's errors count where the left one does not decide."""
    value = _with_errors(left, _truth(truth))
    if (error := right.get(Kind.ERROR)) is None:
        return value
    return _with_errors({Kind.ERROR: Part(_and(undecided, error.where), error.data)}, value)


def _with_errors(operand: Value, value: Value) -> Value:
    """A value, but for the moments at which an operand is an error."""
    error = operand.get(Kind.ERROR)
    if error is None:
        return value
    if error.where is None:
        return {Kind.ERROR: error}
    rest = [(kind, Part(_and(~error.where, part.where), part.data)) for kind, part in value.items()]
    return _merged([(Kind.ERROR, error), *rest])


def _merged(parts: Sequence[tuple[Kind, Part]]) -> Value:
    """Parts that overlap nowhere, each kind once."""
    merged: dict[Kind, Part] = {}
    for kind, part in parts:
        if part.where is not None and not part.where.any():
            continue
        known = merged.get(kind)
        if known is None or known.where is None or part.where is None:
            merged[kind] = part
        else:
            merged[kind] = Part(known.where | part.where, _either(kind, part.where, part.data, known.data))
    return merged


def _either(kind: Kind, where: Bool, data: Any, other: Any) -> Any:
    if kind is Kind.ERROR:  # one of them is told
        return other
    if kind is Kind.INTEGER:  # of any size
        data, other = np.asarray(data, dtype=object), np.asarray(other, dtype=object)
    return np.where(where, data, other)


def _and(one: Bool | None, two: Bool | None) -> Bool | None:
    if one is None or two is None:
        return two if one is None else one
    both: Bool = one & two
    return both


def _calculated(sign: str, one: Kind, a: Any, two: Kind, b: Any) -> list[tuple[Kind, Part]]:
    """`a` sign `b` where each is of one kind."""
    if _is_float(one) or _is_float(two):
        return [(Kind.DOUBLE, Part(None, _doubles(sign, _double(a), _double(b))))]
    if Kind.BOOLEAN in (one, two):
        if sign in ("/", "%"):
            return [(Kind.DOUBLE, Part(None, 0.0))]
        return [(Kind.ERROR, Part(None, f"'{sign}' error: a truth value is a number beside doubles only"))]
    return _integers(sign, a, b)


def _doubles(sign: str, a: Any, b: Any) -> Any:
    match sign:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return np.where(b == 0, 0.0, np.divide(a, b))
        case _:
            return np.where(b == 0, 0.0, np.fmod(a, b))


def _integers(sign: str, a: Any, b: Any) -> list[tuple[Kind, Part]]:
    """Integers of any size; what cannot be divided by is 0.0, a double."""
    match sign:
        case "+":
            return [(Kind.INTEGER, Part(None, a + b))]
        case "-":
            return [(Kind.INTEGER, Part(None, a - b))]
        case "*":
            return [(Kind.INTEGER, Part(None, a * b))]
    impossible = np.asarray(b == 0 if sign == "/" else b <= 0)  # BigInteger's mod wants what is above 0
    operate = _quotient if sign == "/" else _remainder
    found = [] if impossible.all() else [(Kind.INTEGER, Part(~impossible, operate(a, b)))]
    return [*found, (Kind.DOUBLE, Part(impossible, 0.0))]


def _divided(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


_quotient = np.frompyfunc(_divided, 2, 1)
_remainder = np.frompyfunc(lambda a, b: a % b if b > 0 else 0, 2, 1)


def _compared(sign: str, one: Kind, a: Any, two: Kind, b: Any) -> list[tuple[Kind, Part]]:
    """Truth of a comparison. NaN is below everything, and equal to itself."""
    compare = _COMPARE[sign]
    if sign in ("==", "!=") and Kind.BOOLEAN in (one, two):
        return [(Kind.BOOLEAN, Part(None, compare(_as_truth(a), _as_truth(b))))]
    if _is_float(one) or _is_float(two):
        return [(Kind.BOOLEAN, Part(None, compare(_ordered(a, b), 0)))]
    return [(Kind.BOOLEAN, Part(None, np.asarray(compare(a, b), dtype=np.bool_)))]


def _ordered(a: Any, b: Any) -> NDArray[np.int8]:
    """-1, 0 or 1, as Java's compare of what may be NaN."""
    a, b = np.asarray(_double(a)), np.asarray(_double(b))
    lower = (a < b) | (np.isnan(a) & ~np.isnan(b))
    higher = (a > b) | (np.isnan(b) & ~np.isnan(a))
    order: NDArray[np.int8] = higher.astype(np.int8) - lower.astype(np.int8)
    return order


def _negated(value: Value) -> Value:
    """A truth value turns to its opposite."""
    found: dict[Kind, Part] = {}
    for kind, (where, data) in value.items():
        if kind is not Kind.ERROR:
            found[kind] = Part(where, ~np.asarray(data, dtype=np.bool_) if kind is Kind.BOOLEAN else -data)
    return found


def _chosen(condition: Value, chosen: Value, other: Value) -> Value:
    truth = _true(condition)
    return _merged(
        [(kind, Part(_and(truth, part.where), part.data)) for kind, part in chosen.items()]
        + [(kind, Part(_and(~truth, part.where), part.data)) for kind, part in other.items()]
    )


def _truth(truth: Bool) -> Value:
    return {Kind.BOOLEAN: Part(None, truth)}


def _true(value: Value) -> Bool:
    """Where a value counts as true: not 0, not NaN, not nothing."""
    found = [
        np.asarray(True if where is None else where) & _as_truth(data)
        for kind, (where, data) in value.items()
        if kind is not Kind.ERROR
    ]
    if not found:
        return np.asarray(False)
    true: Bool = reduce(np.logical_or, found)
    return true


def _as_truth(data: Any) -> Bool:
    numbers = np.asarray(data)
    true: Bool = np.asarray(numbers != 0, dtype=np.bool_)
    return true & ~np.isnan(numbers) if numbers.dtype == np.float64 else true


def _double(data: Any) -> Any:
    if not isinstance(data, np.ndarray):
        return _nearest(data)
    return np.asarray(_nearest_each(data) if data.dtype == object else data, dtype=np.float64)


def _nearest(number: float) -> float:
    """The double; an integer beyond all of them is infinite, as in Java."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


_nearest_each = np.frompyfunc(_nearest, 1, 1)


def _is_float(kind: Kind) -> bool:
    return kind in (Kind.DOUBLE, Kind.FLOAT)


def _result(value: Value, shape: tuple[int, ...]) -> Float64:
    """Doubles and truth values as doubles; raises BadResult where there is anything else."""
    if (error := value.get(Kind.ERROR)) is not None:
        raise BadResult(error.data)
    found = np.zeros(shape)
    for kind, (where, data) in value.items():
        if kind not in (Kind.DOUBLE, Kind.BOOLEAN):
            raise BadResult(f"Expression returned a result of type: {_java_name(kind, where, data)}")
        if where is None:
            found[...] = data
        else:
            np.copyto(found, data, where=where)
    return found


def _java_name(kind: Kind, where: Bool | None, data: Any) -> str:
    """The class that Java would have the first of some values in."""
    if kind is not Kind.INTEGER:
        return str(kind.value)
    first = data if not isinstance(data, np.ndarray) else data[where][0] if where is not None else data.flat[0]
    if -_INTEGER <= first < _INTEGER:
        return "java.lang.Integer"
    return "java.lang.Long" if -_LONG <= first < _LONG else "java.math.BigInteger"
