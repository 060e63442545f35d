"""Evaluates an expression over whole series, with the arithmetic of Apache JEXL 2.1.

Variables are doubles, so most values are. A choice between literals can have values of several kinds, which are kept
apart for each time. As in OpenTSDB, integers divide as integers, and a final result that is no double is refused.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.codec.points import Bool, Float64
from tsd.query.exp.parser import Expression, Literal, Operation, ValueKind, Variable

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
_LONG = 1 << 63
_INTEGER = 1 << 31


class BadResult(Exception):
    """The result of an expression cannot be shown as a series."""


class KindValues(NamedTuple):
    """The times at which a value has one kind."""

    where: Bool | None  # None: all
    data: Any  # a scalar or an array; of Python's integers for ValueKind.INTEGER, of doubles for DOUBLE and FLOAT


Value = Mapping[ValueKind, KindValues]


def evaluate(expression: Expression, variables: Mapping[str, Float64], shape: tuple[int, ...]) -> Float64:
    """Return the results: an array of `shape`, to which the variables broadcast. True is 1.0. Raise BadResult."""
    if 0 in shape:  # without times there is no error
        return np.zeros(shape)
    stack: list[Value] = []
    with np.errstate(all="ignore"):
        for step in expression.steps:
            match step:
                case Literal(kind, value):
                    stack.append({kind: KindValues(None, value)})
                case Variable(name):
                    stack.append({ValueKind.DOUBLE: KindValues(None, variables[name])})
                case Operation("=", _):
                    stack.append(stack[-1])
                case Operation(sign, operands):
                    taken = stack[-operands:]
                    del stack[-operands:]
                    stack.append(_operate(sign, taken))
    return _result(stack.pop(), shape)


def depth(expression: Expression) -> int:
    """Return the size that the stack reaches during evaluation."""
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


def _each(
    left: Value, right: Value, operate: Callable[[ValueKind, Any, ValueKind, Any], list[tuple[ValueKind, KindValues]]]
) -> Value:
    """Apply an operation to each pair of kinds that share a time. An error on either side is an error of the result."""
    found: list[tuple[ValueKind, KindValues]] = []
    for one, a in left.items():
        for two, b in right.items():
            where = _and(a.where, b.where)
            if where is not None and not where.any():
                continue
            if ValueKind.ERROR in (one, two):
                found.append((ValueKind.ERROR, KindValues(where, a.data if one is ValueKind.ERROR else b.data)))
                continue
            parts = operate(one, a.data, two, b.data)
            found += [(kind, KindValues(_and(where, own), data)) for kind, (own, data) in parts]
    return _merged(found)


def _decided(left: Value, right: Value, undecided: Bool, truth: Bool) -> Value:
    """Return a logical result. Errors of the right side count only where the left side does not decide."""
    value = _with_errors(left, _truth(truth))
    if (error := right.get(ValueKind.ERROR)) is None:
        return value
    return _with_errors({ValueKind.ERROR: KindValues(_and(undecided, error.where), error.data)}, value)


def _with_errors(operand: Value, value: Value) -> Value:
    """Replace a value by the operand's errors."""
    error = operand.get(ValueKind.ERROR)
    if error is None:
        return value
    if error.where is None:
        return {ValueKind.ERROR: error}
    rest = [(kind, KindValues(_and(~error.where, part.where), part.data)) for kind, part in value.items()]
    return _merged([(ValueKind.ERROR, error), *rest])


def _merged(parts: Sequence[tuple[ValueKind, KindValues]]) -> Value:
    """Join parts that do not overlap, one for each kind."""
    merged: dict[ValueKind, KindValues] = {}
    for kind, part in parts:
        if part.where is not None and not part.where.any():
            continue
        known = merged.get(kind)
        if known is None or known.where is None or part.where is None:
            merged[kind] = part
        else:
            merged[kind] = KindValues(known.where | part.where, _either(kind, part.where, part.data, known.data))
    return merged


def _either(kind: ValueKind, where: Bool, data: Any, other: Any) -> Any:
    if kind is ValueKind.ERROR:  # one of them is reported
        return other
    if kind is ValueKind.INTEGER:  # of any size
        data, other = np.asarray(data, dtype=object), np.asarray(other, dtype=object)
    return np.where(where, data, other)


def _and(one: Bool | None, two: Bool | None) -> Bool | None:
    if one is None or two is None:
        return two if one is None else one
    both: Bool = one & two
    return both


def _calculated(sign: str, one: ValueKind, a: Any, two: ValueKind, b: Any) -> list[tuple[ValueKind, KindValues]]:
    """Calculate `a` sign `b`, each of one kind."""
    if _is_float(one) or _is_float(two):
        return [(ValueKind.DOUBLE, KindValues(None, _doubles(sign, _double(a), _double(b))))]
    if ValueKind.BOOLEAN in (one, two):
        if sign in ("/", "%"):
            return [(ValueKind.DOUBLE, KindValues(None, 0.0))]
        return [
            (ValueKind.ERROR, KindValues(None, f"'{sign}' error: a boolean is a number only together with doubles"))
        ]
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


def _integers(sign: str, a: Any, b: Any) -> list[tuple[ValueKind, KindValues]]:
    """Calculate with integers of any size. Division by zero is 0.0, a double."""
    match sign:
        case "+":
            return [(ValueKind.INTEGER, KindValues(None, a + b))]
        case "-":
            return [(ValueKind.INTEGER, KindValues(None, a - b))]
        case "*":
            return [(ValueKind.INTEGER, KindValues(None, a * b))]
    impossible = np.asarray(b == 0 if sign == "/" else b <= 0)  # BigInteger's mod needs a positive number
    operate = _quotient if sign == "/" else _remainder
    found = [] if impossible.all() else [(ValueKind.INTEGER, KindValues(~impossible, operate(a, b)))]
    return [*found, (ValueKind.DOUBLE, KindValues(impossible, 0.0))]


def _divided(a: int, b: int) -> int:
    return (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


_quotient = np.frompyfunc(_divided, 2, 1)
_remainder = np.frompyfunc(lambda a, b: a % b if b > 0 else 0, 2, 1)


def _compared(sign: str, one: ValueKind, a: Any, two: ValueKind, b: Any) -> list[tuple[ValueKind, KindValues]]:
    """Compare. NaN is below everything and equal to itself."""
    compare = _COMPARE[sign]
    if sign in ("==", "!=") and ValueKind.BOOLEAN in (one, two):
        return [(ValueKind.BOOLEAN, KindValues(None, compare(_as_truth(a), _as_truth(b))))]
    if _is_float(one) or _is_float(two):
        return [(ValueKind.BOOLEAN, KindValues(None, compare(_ordered(a, b), 0)))]
    a, b = np.asarray(a).astype(object), np.asarray(b).astype(object)  # integers of any size, and booleans
    return [(ValueKind.BOOLEAN, KindValues(None, np.asarray(compare(a, b), dtype=np.bool_)))]


def _ordered(a: Any, b: Any) -> NDArray[np.int8]:
    """Return -1, 0 or 1, like Java's compare, also for NaN."""
    a, b = np.asarray(_double(a)), np.asarray(_double(b))
    lower = (a < b) | (np.isnan(a) & ~np.isnan(b))
    higher = (a > b) | (np.isnan(b) & ~np.isnan(a))
    order: NDArray[np.int8] = higher.astype(np.int8) - lower.astype(np.int8)
    return order


def _negated(value: Value) -> Value:
    """Negate numbers, and invert booleans."""
    found: dict[ValueKind, KindValues] = {}
    for kind, (where, data) in value.items():
        if kind is not ValueKind.ERROR:
            found[kind] = KindValues(where, ~np.asarray(data, dtype=np.bool_) if kind is ValueKind.BOOLEAN else -data)
    return found


def _chosen(condition: Value, chosen: Value, other: Value) -> Value:
    truth = _true(condition)
    return _merged(
        [(kind, KindValues(_and(truth, part.where), part.data)) for kind, part in chosen.items()]
        + [(kind, KindValues(_and(~truth, part.where), part.data)) for kind, part in other.items()]
    )


def _truth(truth: Bool) -> Value:
    return {ValueKind.BOOLEAN: KindValues(None, truth)}


def _true(value: Value) -> Bool:
    """Return where a value is true: not 0, not NaN, not null."""
    found = [
        np.asarray(True if where is None else where) & _as_truth(data)
        for kind, (where, data) in value.items()
        if kind is not ValueKind.ERROR
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
    """Return the nearest double; infinite for a larger integer, as in Java."""
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


_nearest_each = np.frompyfunc(_nearest, 1, 1)


def _is_float(kind: ValueKind) -> bool:
    return kind in (ValueKind.DOUBLE, ValueKind.FLOAT)


def _result(value: Value, shape: tuple[int, ...]) -> Float64:
    """Return doubles and booleans as doubles. Raise BadResult for any other kind."""
    if (error := value.get(ValueKind.ERROR)) is not None:
        raise BadResult(error.data)
    found = np.zeros(shape)
    for kind, (where, data) in value.items():
        if kind not in (ValueKind.DOUBLE, ValueKind.BOOLEAN):
            raise BadResult(f"Expression returned a result of type: {_java_name(kind, where, data)}")
        if where is None:
            found[...] = data
        else:
            np.copyto(found, data, where=where)
    return found


def _java_name(kind: ValueKind, where: Bool | None, data: Any) -> str:
    """Return the Java class of the first of some values."""
    if kind is not ValueKind.INTEGER:
        return str(kind.value)
    first = data if not isinstance(data, np.ndarray) else data[where][0] if where is not None else data.flat[0]
    if -_INTEGER <= first < _INTEGER:
        return "java.lang.Integer"
    return "java.lang.Long" if -_LONG <= first < _LONG else "java.math.BigInteger"
