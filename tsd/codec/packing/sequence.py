"""Compact encoding of sequences of 64-bit integers (FORMATS.md §12): the reference of the compiled _sequence files.

An *order* replaces the numbers by residuals: the numbers themselves, their differences, the differences of those, or
the deviations from equal steps. Residuals are stored relative to a base, by one of four coders, in as few bits as
possible. All arithmetic wraps at 64 bits.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tsd.errors import CorruptRow

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

NUMBERS, DIFFERENCES, SECOND_DIFFERENCES, EVEN_STEPS = range(4)  # orders
WIDE = 1 << 47  # residuals with a larger range are stored with fixed width
FEW = 4  # of fewer numbers no differences are stored
_SAMPLES = 128  # residuals that are sampled to choose an order, up to twice as many
_FAR = np.uint64(1 << 48)


class Coder(IntEnum):
    """The code of the differences from the base."""

    FIXED = 0  # fixed width; the base is the lowest
    FROM_LEAST = 1  # Rice's code; the base is the lowest
    FROM_MEAN = 2  # Rice's code of signed numbers (zigzag); the base is the mean
    SPARSE = 3  # nearly all are the base: positions and differences of the others


class _Rice(NamedTuple):
    """Numbers in Rice's code: each is a quotient by 2**k, in ones and zeros, and a rest of k bits."""

    numbers: UInt64
    k: int
    total: int  # of the quotients

    @property
    def size(self) -> int:
        """Bytes of both parts."""
        count = len(self.numbers)
        return (count + self.total + 7) // 8 + (count * self.k + 7) // 8


def encode_sequence(numbers: Int64, orders: Sequence[int]) -> bytes:
    """Return the bytes of one number or more, in the order of differences that takes the fewest bytes."""
    orders, step = (orders, _step(numbers)) if len(numbers) >= FEW else ((NUMBERS,), 0)
    rests_of = [(order, _rests(numbers, order, step)) for order in orders]
    order, rests = min(rests_of, key=lambda found: _cost(found[1], _around(numbers, found[0])))
    coder, base, content = _encode_rests(rests)
    head = bytes((order | coder << 2,))
    if order != NUMBERS:
        head += varint(zigzag(int(numbers[0])))
    if order == SECOND_DIFFERENCES:
        head += varint(zigzag(_wrapped(int(numbers[1]) - int(numbers[0]))))
    elif order == EVEN_STEPS:
        head += varint(zigzag(step))
    return head + varint(zigzag(base)) + content


def _rests(numbers: Int64, order: int, step: int) -> Int64:
    if order == NUMBERS:
        return numbers
    if order in (DIFFERENCES, SECOND_DIFFERENCES):
        return np.diff(numbers, n=order)
    even: Int64 = np.int64(step) * np.arange(1, len(numbers), dtype=np.int64)
    rests: Int64 = numbers[1:] - numbers[0] - even
    return rests


def _step(numbers: Int64) -> int:
    whole, steps = _wrapped(int(numbers[-1]) - int(numbers[0])), len(numbers) - 1
    return (whole + steps // 2) // steps if 0 <= whole < 1 << 62 else 0


def _around(numbers: Int64, order: int) -> int:
    """Return the approximate centre of an order's remainders."""
    first = int(numbers[0])
    if order == NUMBERS:
        return _wrapped(first + _rounded(int((numbers - numbers[0]).sum()), len(numbers)))
    return _rounded(_wrapped(int(numbers[-1]) - first), len(numbers) - 1) if order == DIFFERENCES else 0


def _rounded(number: int, by: int) -> int:
    """Return the quotient, rounded to the nearest integer, halves upwards."""
    whole, rest = divmod(number, by)
    return whole + (2 * rest >= by)


def _cost(rests: Int64, around: int) -> int:
    """Return about how many bits sampled residuals take."""
    off = np.abs(rests[:: 1 + len(rests) // _SAMPLES] - np.int64(around)).view(np.uint64)
    return int(np.frexp(np.minimum(off, _FAR).astype(np.float64))[1].sum())


def _encode_rests(rests: Int64) -> tuple[Coder, int, bytes]:
    """Return the first coder with the fewest bytes, the base, and the bytes."""
    least, count = int(rests.min()), len(rests)
    from_least = (rests - np.int64(least)).view(np.uint64)
    width = int(from_least.max()).bit_length()
    fixed = Coder.FIXED, least, bytes((width,)) + _bits(from_least, width)
    if int(from_least.max()) >= WIDE:
        return fixed
    mean = least + (int(from_least.sum()) + count // 2) // count
    by_least, by_mean = _rice(from_least), _rice(_zigzags(rests - np.int64(mean)))
    found = [
        (len(fixed[2]) - 1, *fixed),
        (by_least.size, Coder.FROM_LEAST, least, _rice_bytes(by_least)),
        (by_mean.size, Coder.FROM_MEAN, mean, _rice_bytes(by_mean)),
    ]
    common = int(np.sort(rests)[count // 2])
    places = np.flatnonzero(rests != common)
    if 3 * len(places) <= count:
        gaps = _rice((np.diff(places, prepend=-1) - 1).astype(np.uint64))
        steps = _rice(_zigzags(rests[places] - np.int64(common)) - np.uint64(1))
        content = varint(len(places)) + _rice_bytes(gaps) + _rice_bytes(steps)
        found.append((3 + gaps.size + steps.size, Coder.SPARSE, common, content))
    return min(found, key=lambda one: one[0])[1:]


def _rice(numbers: UInt64) -> _Rice:
    """Encode with the parameter that takes the fewest bits."""
    count, whole = len(numbers), int(numbers.sum())
    around = (whole // count).bit_length() if count else 0
    tried = [_Rice(numbers, k, int((numbers >> np.uint64(k)).sum())) for k in range(max(around - 2, 0), around + 1)]
    return min(tried, key=lambda rice: rice.total + count * (rice.k + 1))


def _rice_bytes(rice: _Rice) -> bytes:
    ones = np.zeros(len(rice.numbers) + rice.total, np.uint8)
    ones[np.cumsum((rice.numbers >> np.uint64(rice.k)).astype(np.int64) + 1) - 1] = 1
    quotients = np.packbits(ones, bitorder="little").tobytes()
    return bytes((rice.k,)) + varint(rice.total) + quotients + _bits(rice.numbers, rice.k)


def _bits(numbers: UInt64, width: int) -> bytes:
    """Return the low `width` bits of each, lowest first."""
    bits = np.unpackbits(numbers.astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    return np.packbits(bits[:, :width], bitorder="little").tobytes()


class Reader:
    """Reads bytes from the front. Raise CorruptRow if they are not a sequence."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        part = self.data[self.at : self.at + size]
        if len(part) < size:
            raise CorruptRow(f"a sequence ends {size - len(part)} bytes short")
        self.at += size
        return part

    def varint(self) -> int:
        """Return a number of up to 64 bits, seven a byte, lowest first."""
        number = shift = 0
        while shift < 64:
            [byte] = self.take(1)
            number |= (byte & 127) << shift
            if byte < 128:
                return number & (1 << 64) - 1
            shift += 7
        raise CorruptRow("a varint is too long")

    def bits(self, count: int, width: int) -> UInt64:
        """Return numbers of `width` bits."""
        if width > 64:
            raise CorruptRow(f"numbers of {width} bits")
        found = np.zeros((count, 64), np.uint8)
        taken = np.frombuffer(self.take((count * width + 7) // 8), np.uint8)
        found[:, :width] = np.unpackbits(taken, count=count * width, bitorder="little").reshape(count, width)
        return np.packbits(found, axis=1, bitorder="little").view("<u8").reshape(count).astype(np.uint64)

    def rice(self, count: int) -> UInt64:
        """Return numbers in Rice's code."""
        [k] = self.take(1)
        total = self.varint()
        if k > 47 or total > 1 << 32 or (total and not count):
            raise CorruptRow(f"Rice's code with k = {k}, of {count} numbers whose quotients sum up to {total}")
        ones = np.frombuffer(self.take((count + total + 7) // 8), np.uint8)
        ends = np.flatnonzero(np.unpackbits(ones, count=count + total, bitorder="little"))
        if len(ends) != count or (count and ends[-1] != count + total - 1):
            raise CorruptRow(f"{len(ends)} quotients of {count}")
        quotients = (np.diff(ends, prepend=-1) - 1).astype(np.uint64)
        return quotients << np.uint64(k) | self.bits(count, k)

    def sequence(self, count: int) -> Int64:
        """Return the `count` numbers that `encode_sequence` encoded."""
        [head] = self.take(1)
        order = head & 3
        if head > 15 or (order == SECOND_DIFFERENCES and count == 1):
            raise CorruptRow(f"invalid first byte of a sequence of {count}: {head:#x}")
        coder = Coder(head >> 2)
        if order == NUMBERS:
            return self._rests(coder, count)
        first = unzigzag(self.varint())
        step = unzigzag(self.varint()) if order in (SECOND_DIFFERENCES, EVEN_STEPS) else 0
        if order == EVEN_STEPS:
            even = np.int64(step) * np.arange(count, dtype=np.int64) + np.int64(first)
            even[1:] += self._rests(coder, count - 1)
            return even
        steps = np.array([first], np.int64)
        if order == SECOND_DIFFERENCES:
            rests = np.concatenate((np.array([step], np.int64), self._rests(coder, count - 2)))
            return np.cumsum(np.concatenate((steps, np.cumsum(rests))))
        return np.cumsum(np.concatenate((steps, self._rests(coder, count - 1))))

    def _rests(self, coder: Coder, count: int) -> Int64:
        base = unzigzag(self.varint())
        if coder is Coder.FIXED:
            [width] = self.take(1)
            above = self.bits(count, width).view(np.int64)
        elif coder is Coder.FROM_LEAST:
            above = self.rice(count).view(np.int64)
        elif coder is Coder.FROM_MEAN:
            above = _unzigzags(self.rice(count))
        else:
            above = self._sparse(count)
        return above + np.int64(base)

    def _sparse(self, count: int) -> Int64:
        others = self.varint()
        if others > count:
            raise CorruptRow(f"{others} exceptions among {count} numbers")
        places = np.cumsum(self.rice(others).astype(np.int64) + 1) - 1
        steps = self.rice(others)
        if others and not 0 <= places.min() <= places.max() < count:
            raise CorruptRow(f"an exception at {places.max()} of {count}")
        above = np.zeros(count, np.int64)
        above[places] = _unzigzags(steps + np.uint64(1))
        return above


def varint(number: int) -> bytes:
    """Return a nonnegative number as a varint: seven bits a byte, lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def zigzag(number: int) -> int:
    """Return a signed number as a nonnegative one: 0, -1, 1, -2…

    >>> [zigzag(number) for number in (0, -1, 1, -(1 << 63))] == [0, 1, 2, (1 << 64) - 1]
    True
    """
    return number * 2 if number >= 0 else -number * 2 - 1


def unzigzag(number: int) -> int:
    """Return the number that `zigzag` encoded as `number`."""
    return -(number >> 1) - 1 if number & 1 else number >> 1


def _zigzags(numbers: Int64) -> UInt64:
    return (numbers << 1 ^ numbers >> 63).view(np.uint64)


def _unzigzags(numbers: UInt64) -> Int64:
    return (numbers >> np.uint64(1)).view(np.int64) ^ -(numbers & np.uint64(1)).view(np.int64)


def _wrapped(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
