"""Pages of several sequences, read ahead and taken in order."""

from collections.abc import AsyncGenerator, Callable

import pytest
import trio

from tsd.errors import StoreError
from tsd.tables.read_ahead import take_sequences

Pages = AsyncGenerator[tuple[int, int], None]


async def pages_of(number: int, count: int, before: Callable[[int], None] = lambda _: None) -> Pages:
    for at in range(count):
        await trio.lowlevel.checkpoint()
        before(number)
        yield number, at


async def found(*counts: int) -> AsyncGenerator[Pages, None]:
    for number, count in enumerate(counts):
        await trio.lowlevel.checkpoint()
        yield pages_of(number, count)


@pytest.mark.parametrize("counts", [(), (0,), (1,), (3,), (1, 1), (2, 0, 3), (0, 0, 1, 4)])
@pytest.mark.parametrize("parallel", [1, 3])
async def test_pages_of_all_sequences_are_taken_in_order(counts: tuple[int, ...], parallel: int) -> None:
    taken: list[tuple[int, int]] = []

    async def take(page: tuple[int, int]) -> None:
        await trio.lowlevel.checkpoint()
        taken.append(page)

    await take_sequences(found(*counts), take, parallel)
    assert taken == [(number, at) for number, count in enumerate(counts) for at in range(count)]


async def test_next_sequence_is_read_before_the_one_that_is_taken_has_a_page() -> None:
    later = trio.Event()
    taken: list[tuple[int, int]] = []

    async def first() -> Pages:
        await later.wait()
        yield 0, 0

    async def sequences() -> AsyncGenerator[Pages, None]:
        yield first()
        yield pages_of(1, 1, lambda _: later.set())

    async def take(page: tuple[int, int]) -> None:
        taken.append(page)

    with trio.fail_after(60):
        await take_sequences(sequences(), take, 1)
    assert taken == [(0, 0), (1, 0)]


@pytest.mark.parametrize("good", [0, 1, 2])
@pytest.mark.parametrize("finds", [True, False])
async def test_errors_of_finding_and_of_reading_are_raised(good: int, finds: bool) -> None:
    async def failing() -> Pages:
        raise StoreError("away")
        yield 0, 0

    async def sequences() -> AsyncGenerator[Pages, None]:
        for number in range(good):
            yield pages_of(number, 1)
        if finds:
            raise StoreError("away")
        yield failing()

    async def take(_: tuple[int, int]) -> None:
        await trio.lowlevel.checkpoint()

    with pytest.raises(StoreError, match="away"):
        await take_sequences(sequences(), take, 1)
