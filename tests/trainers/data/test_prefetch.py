"""Prefetching yields results in the order of their items, and raises an error in place of the result that
failed.
"""

import threading

import pytest

from trainers.data.prefetch import prefetch


@pytest.mark.parametrize("threads", [0, 1, 3, 20])
@pytest.mark.parametrize("count", [0, 1, 8])
def test_what_is_made_and_its_order_do_not_depend_on_threads(threads, count):
    assert list(prefetch(range(count), lambda number: number**2, threads)) == [number**2 for number in range(count)]


def test_exactly_the_next_results_are_made_while_one_is_in_use():
    made = [threading.Event() for _ in range(10)]

    def make(number):
        made[number].set()
        return number

    results = prefetch(range(10), make, 2)
    assert next(results) == 0
    assert all(made[number].wait(5) for number in (1, 2))
    assert not any(event.is_set() for event in made[3:])
    results.close()


def test_a_later_one_may_be_done_first_and_waits_for_its_turn():
    second = threading.Event()

    def make(number):
        if number == 1:
            second.set()
        elif number == 0:
            assert second.wait(5)
        return number

    assert list(prefetch(range(3), make, 2)) == [0, 1, 2]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_exception_comes_where_the_result_would_have_come(threads):
    def make(number):
        if number == 2:
            raise OSError("shard 2")
        return number

    results = prefetch(range(9), make, threads)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(OSError, match="shard 2"):
        next(results)


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
def test_an_exception_of_the_items_comes_after_the_earlier_results(threads):
    def drawn():
        yield from range(3)
        raise ValueError("no sample 3")

    results = prefetch(drawn(), str, threads)
    assert [next(results) for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(ValueError, match="no sample 3"):
        next(results)


def test_what_is_drawn_is_read_in_the_callers_thread_and_closing_ends_the_others():
    before = threading.active_count()

    def drawn():
        for number in range(6):
            assert threading.current_thread() is threading.main_thread()
            yield number

    results = prefetch(drawn(), lambda number: (number, threading.current_thread().name), 2)
    assert next(results)[1].startswith("loader")
    assert threading.active_count() > before
    results.close()
    assert threading.active_count() == before
