"""Stages in threads: the order and items of the sequential run, overlap, bounds and clean ends.

Nothing sleeps: a thread that must wait for another waits for an event, and a missing one fails.
"""

import itertools
import threading
from collections.abc import Iterator

import pytest

from avatar_v.generate.pipelining import chained, pipelined

PATIENCE_S = 120
"""Of a wait that ends at once unless the code is wrong; long, because CI machines are busy."""


def stage_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("stage-")]


def doubled(items: Iterator[int]) -> Iterator[int]:
    for item in items:
        yield 2 * item


def split(items: Iterator[int]) -> Iterator[int]:
    """Two items for each odd one, none for an even one."""
    for item in items:
        if item % 2:
            yield from (item, -item)


def running_sum(items: Iterator[int]) -> Iterator[int]:
    yield from itertools.accumulate(items)


@pytest.mark.parametrize("num", [0, 1, 2, 50])
@pytest.mark.parametrize("stages", [(), (doubled,), (split, running_sum), (doubled, split, split)])
def test_the_items_and_order_are_those_of_the_sequential_run(num: int, stages: tuple) -> None:
    assert list(pipelined(range(num), *stages)) == list(chained(range(num), *stages))
    assert stage_threads() == []


def test_the_next_item_is_begun_while_this_one_is_finished() -> None:
    begun = [threading.Event() for _ in range(4)]

    def first(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            begun[item].set()
            yield item

    def second(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            if item < 3:  # would wait for ever if the stages took turns
                assert begun[item + 1].wait(PATIENCE_S)
            yield item

    assert list(pipelined(range(4), first, second)) == [0, 1, 2, 3]


def test_a_slow_consumer_holds_the_source_back() -> None:
    pulled = taken = most = 0
    stalled = threading.Event()

    def source() -> Iterator[int]:
        nonlocal pulled, most
        for pulled in range(1, 101):
            most = max(most, pulled - taken)
            if pulled - taken == bound:
                stalled.set()
            yield pulled

    # A link after the source and each stage holds one item, and so does each thread's hand.
    bound = 2 * 3
    for item in pipelined(source(), doubled, doubled):
        if item == 4:  # the pipeline does fill up behind a consumer that takes nothing
            assert stalled.wait(PATIENCE_S)
        taken += 1
    assert taken == 100
    assert most <= bound + 1  # the consumer counts an item only after it has come


def test_closing_stops_every_stage_and_runs_its_cleanup() -> None:
    closed = []

    def source() -> Iterator[int]:
        try:
            yield from itertools.count()
        finally:
            closed.append("source")

    def stage(items: Iterator[int]) -> Iterator[int]:
        try:
            yield from items
        finally:
            closed.append("stage")

    items = pipelined(source(), stage)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    items.close()
    assert sorted(closed) == ["source", "stage"]
    assert stage_threads() == []


def test_a_dropped_iterator_leaves_no_thread() -> None:
    items = pipelined(itertools.count(), doubled)
    assert next(items) == 0
    assert stage_threads() != []
    del items
    assert stage_threads() == []


def test_nothing_starts_before_the_first_item_is_asked_for() -> None:
    items = pipelined(itertools.count(), doubled)
    assert stage_threads() == []
    items.close()


@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_an_error_comes_out_behind_the_items_before_it(at: int, error: BaseException) -> None:
    def breaking(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            if item == 5:
                raise error
            yield item

    def whole(items: Iterator[int]) -> Iterator[int]:
        yield from items

    runs = [whole, whole, whole]
    runs[at] = breaking
    source = runs[0](iter(itertools.count()))
    items, seen = pipelined(source, *runs[1:]), []
    with pytest.raises(type(error)) as caught:
        seen.extend(items)
    assert caught.value is error
    for item in items:  # an iterator that has raised is exhausted
        raise AssertionError(item)
    assert stage_threads() == []


def test_items_made_before_an_error_are_not_lost() -> None:
    def breaking(items: Iterator[int]) -> Iterator[int]:
        yield from itertools.islice(items, 5)
        raise ValueError("broken")

    seen = []
    items = pipelined(itertools.count(), breaking, doubled)
    with pytest.raises(ValueError, match="broken"):
        any(seen.append(item) for item in items)
    assert seen == [0, 2, 4, 6, 8]


def test_a_stage_may_end_before_its_source() -> None:
    def three(items: Iterator[int]) -> Iterator[int]:
        return itertools.islice(items, 3)

    assert list(pipelined(itertools.count(), three, doubled)) == [0, 2, 4]
    assert stage_threads() == []


def test_a_source_that_waits_outside_is_woken() -> None:
    woken = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        assert woken.wait(PATIENCE_S)

    items = pipelined(source(), doubled, interrupt=woken.set)
    assert next(items) == 2
    items.close()
    assert stage_threads() == []
