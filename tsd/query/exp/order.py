"""Expressions that are made of others: in which order they can be evaluated."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tsd.errors import BadQuery
from tsd.query.exp.request import Formula


def in_order(formulas: Sequence[Formula]) -> list[Formula]:
    """Each behind those that it is made of. Raises BadQuery where one is made of itself.

    Each is looked at once, and without recursion: the way down may be longer than Python's stack.
    """
    by_id = {formula.id: formula for formula in formulas}
    order: dict[str, Formula] = {}
    for top in by_id:
        above: dict[str, Iterator[str]] = {} if top in order else {top: iter(by_id[top].expression.names)}
        while above:
            name = next(reversed(above))
            for inner in above[name]:
                _check_not_above(inner, name, above)
                if inner in by_id and inner not in order:
                    above[inner] = iter(by_id[inner].expression.names)
                    break
            else:
                del above[name]
                order[name] = by_id[name]
    return list(order.values())


def _check_not_above(inner: str, name: str, above: Mapping[str, object]) -> None:
    if inner == name:
        raise BadQuery(f"Self referencing expression found: {name}")
    if inner in above:
        raise BadQuery(f"Circular reference found: {name}")


def needed(outputs: Iterable[str], order: Sequence[Formula]) -> list[Formula]:
    """Those that `outputs` are made of, themselves included, in the same order."""
    wanted = set(outputs)
    for formula in reversed(order):
        if formula.id in wanted:
            wanted.update(formula.expression.names)
    return [formula for formula in order if formula.id in wanted]
