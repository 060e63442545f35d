"""Times of the rows of a block: each distinct vector of times once, as numbers that take few bytes, and back.

An agent that keeps its interval has times near even steps. If its points are late or early at random, the distances
from even steps take fewer bytes than the differences of neighbours, in which each such point counts twice. If it waits
for its interval after each point, differences take fewer bytes.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tsd.codec.blocks.numbers import cuts
from tsd.codec.points import Bool, Int32, Int64, starts_of

TIMES = DISTANCES, DIFFERENCES = 254, 255  # forms of chunks
_SECOND_MS = 1000
_SAMPLES = 32  # times of a vector that tell its steps


class Times(NamedTuple):
    """The distinct times of rows: each vector of times once."""

    vector_of: Int64  # of each row
    counts: Int64  # of each vector
    near: int  # this many vectors come first that are stored as distances
    heads: Int32  # (2, near): first and length of the even steps of each
    numbers: Int32  # of each time: what is stored


def distinct_times(offsets: Int64, starts: Int64) -> Times:
    """Return the times of rows. `starts`: index of each one's first point, then the number of points."""
    vectors, vector_of = _distinct(offsets.astype(np.int32).tobytes(), starts * 4)
    counts = np.array([len(vector) // 4 for vector in vectors], np.int64)
    times = np.frombuffer(b"".join(vectors), np.int32)
    if len(counts) == 1:
        return Times(vector_of, counts, 0, np.empty((2, 0), np.int32), np.diff(times, prepend=np.int32(0)))
    heads, distances, are_near = _distances(times, counts)
    order, near = np.argsort(~are_near, kind="stable"), int(are_near.sum())
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    if near < len(order):
        differences, first = np.diff(times, prepend=times[:1]), starts_of(counts)[:-1]
        differences[first] = times[first]
        is_near = np.repeat(are_near, counts)
        distances = np.concatenate((distances[is_near], differences[~is_near]))
    return Times(place[vector_of], counts[order], near, heads[:, are_near], distances)


def _distinct(text: bytes, starts: Int64) -> tuple[list[bytes], Int64]:
    """Return the distinct ones of texts that follow each other, and which one each is. `starts`: of each, and the end
    of the last."""
    size = int(starts[1])
    if (np.diff(starts) == size).all() and text == text[:size] * (len(starts) - 1):  # a tenth of the time
        return [text[:size]], np.zeros(len(starts) - 1, np.int64)
    known: dict[bytes, int] = {}
    numbers = [known.setdefault(text[at:to], len(known)) for at, to in pairwise(starts.tolist())]
    return list(known), np.array(numbers, np.int64)


def _distances(times: Int32, counts: Int64) -> tuple[Int32, Int32, Bool]:
    """Return even steps near each vector, the distances from them, and whether these are smaller than what the
    differences have beyond the length of a step."""
    starts = starts_of(counts)
    first, last = starts[:-1], starts[1:] - 1
    samples = first[:, None] + (counts - 1)[:, None] * np.arange(_SAMPLES) // (_SAMPLES - 1)
    unit = np.where((times[samples] % _SECOND_MS == 0).all(axis=1), _SECOND_MS, 1)
    mean_step = (times[last] - times[first]) / np.maximum(counts - 1, 1)
    steps = (np.rint(mean_step / unit) * unit).astype(np.int32)
    distances = times - _even_steps(times[first], steps, counts, starts)
    shifts = np.sort(distances[samples], axis=1)[:, _SAMPLES // 2]
    errors = np.abs(np.diff(distances, prepend=distances[:1]))
    errors[first] = 0
    distances -= np.repeat(shifts, counts)
    are_near = np.add.reduceat(np.abs(distances), first) < np.add.reduceat(errors, first)
    return np.stack((times[first] + shifts, steps)), distances, are_near


def _even_steps(firsts: Int32, steps: Int32, counts: Int64, starts: Int64) -> Int32:
    """Return the times of even steps, of `counts` for each vector."""
    index = np.arange(starts[-1], dtype=np.int32)
    index *= steps[0] if (steps == steps[0]).all() else np.repeat(steps, counts)
    index += np.repeat(firsts - steps * starts[:-1].astype(np.int32), counts)
    return index


def time_chunks(times: Times, most: int) -> Iterator[tuple[int, int, Int64]]:
    """Yield form, number of vectors and numbers of each chunk of about `most` times."""
    starts, near = starts_of(times.counts), times.near
    for at, to in cuts(times.counts[:near], most) if near else ():
        numbers = times.numbers[starts[at] : starts[to]]
        yield DISTANCES, to - at, np.concatenate((*times.heads[:, at:to], numbers), dtype=np.int64)
    for at, to in cuts(times.counts[near:], most) if near < len(times.counts) else ():
        yield DIFFERENCES, to - at, times.numbers[starts[near + at] : starts[near + to]].astype(np.int64)


def offsets_of(form: int, numbers: Int64, counts: Int64) -> Int64:
    """Return the times of a chunk, vector after vector, of `counts` for each."""
    starts = starts_of(counts)
    if form == DISTANCES:
        firsts, steps = numbers[: 2 * len(counts)].astype(np.int32).reshape(2, -1)
        return numbers[2 * len(counts) :] + _even_steps(firsts, steps, counts, starts)
    sums = np.cumsum(numbers)
    found: Int64 = sums - np.repeat(sums[starts[:-1]] - numbers[starts[:-1]], counts)
    return found


def offsets_of_one(form: int, numbers: Int64, counts: Int64, vector: int) -> Int64:
    """Return the times of one vector of a chunk, see `offsets_of`."""
    vectors, at, count = len(counts), int(counts[:vector].sum()), int(counts[vector])
    found: Int64
    if form == DISTANCES:
        at += 2 * vectors
        found = numbers[at : at + count] + (numbers[vector] + numbers[vectors + vector] * np.arange(count))
    else:
        found = np.cumsum(numbers[at : at + count])
    return found
