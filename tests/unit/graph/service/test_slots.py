"""Slots for runs: keys take turns, none takes all, and nothing is lost when somebody leaves."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.graph.service.records import NOBODY
from fairqr.graph.service.slots import Slots, most_of
from tests.patience import PATIENCE


async def waiting(slots: Slots, keys: list[str], got: list[str]) -> list[asyncio.Task[None]]:
    """Begin to wait for a slot for each key, in this order."""

    async def wait(key: str) -> None:
        await slots.acquire(key)
        got.append(key)

    tasks = [asyncio.create_task(wait(key)) for key in keys]
    await turns_taken()
    return tasks


async def turns_taken() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_keys_take_turns_and_none_takes_all() -> None:
    slots = Slots(4, 0.75)
    got: list[str] = []
    await waiting(slots, ["a"] * 6, got)
    assert got == ["a"] * 3, "a slot is left for others"
    await waiting(slots, ["b", "c", "b"], got)
    assert got[3:] == ["b"]
    for key, then in (("a", "c"), ("a", "a"), ("b", "b"), ("c", "a")):
        slots.release(key)
        await turns_taken()
        assert got[-1] == then


async def test_without_keys_all_slots_are_taken_in_the_order_of_coming() -> None:
    slots = Slots(2, 0.5)
    got: list[str] = []
    await waiting(slots, [NOBODY] * 3, got)
    assert len(got) == 2
    slots.release(NOBODY)
    await turns_taken()
    assert len(got) == 3


async def test_whoever_leaves_takes_no_slot_along() -> None:
    slots = Slots(1, 1)
    got: list[str] = []
    _, second, third = await waiting(slots, ["a", "b", "c"], got)
    second.cancel()
    await turns_taken()
    slots.release("a")
    third.cancel()  # at the moment in which it gets its slot
    await turns_taken()
    await waiting(slots, ["d"], got)
    assert got == ["a", "d"]


@pytest.mark.parametrize("others", [[], ["b"], ["c"], ["b", "c"]])
async def test_whoever_leaves_while_a_slot_becomes_free_loses_it_for_nobody(
    others: list[str],
) -> None:
    """The slot is given back after whoever waits was cancelled, and before that is known."""
    slots = Slots(1, 1)
    got: list[str] = []
    await slots.acquire("a")
    leaving, *_ = await waiting(slots, ["b", *others], got)
    leaving.cancel()
    slots.release("a")
    await turns_taken()
    assert leaving.cancelled()
    for number in range(len(others)):
        slots.release(got[number])
        await turns_taken()
    assert sorted(got) == others
    await asyncio.wait_for(slots.acquire("d"), PATIENCE)


@given(data=st.data())
def test_no_slot_is_lost_in_whichever_way_some_leave(data: st.DataObject) -> None:
    async def run() -> None:
        number = data.draw(st.integers(1, 3))
        slots = Slots(number, 1)
        got: list[str] = []
        tasks = await waiting(slots, data.draw(st.lists(st.sampled_from("abc"), max_size=9)), got)
        released = 0
        for step in data.draw(st.lists(st.sampled_from(["leave", "release", "go on"]))):
            if step == "leave" and tasks:
                tasks.pop(data.draw(st.integers(0, len(tasks) - 1))).cancel()
            elif step == "release" and released < len(got):
                slots.release(got[released])
                released += 1
            else:
                await turns_taken()
        await turns_taken()
        while released < len(got):
            slots.release(got[released])
            released += 1
            await turns_taken()
        for _ in range(number):
            await asyncio.wait_for(slots.acquire("d"), PATIENCE)

    asyncio.run(run())


async def test_an_open_gate_lets_all_in() -> None:
    slots = Slots(1, 1)
    got: list[str] = []
    await waiting(slots, ["a", "b", "c"], got)
    slots.open()
    await waiting(slots, ["d"], got)
    assert sorted(got) == ["a", "b", "c", "d"]


@given(
    number=st.integers(1, 8),
    share=st.floats(0.1, 1),
    comes=st.lists(st.sampled_from(["a", "b", "c", NOBODY]), min_size=1, max_size=30),
)
def test_no_slot_is_idle_while_somebody_may_have_it(
    number: int, share: float, comes: list[str]
) -> None:
    """In whichever order they come: while a key waits, it holds its most, or all slots are held."""

    async def run() -> None:
        slots = Slots(number, share)
        got: list[str] = []
        tasks = await waiting(slots, comes, got)
        left = list(comes)
        held: Counter[str] = Counter()
        seen = 0
        while seen < len(comes):
            for key in got[seen:]:
                held[key] += 1
                left.remove(key)
            seen = len(got)
            assert held.total() <= number
            most = most_of(number, share)
            assert all(it <= most for key, it in held.items() if key != NOBODY)
            could = [key for key in left if key == NOBODY or held[key] < most]
            assert held.total() == number or not could
            key = next(key for key, it in held.items() if it)
            held[key] -= 1
            slots.release(key)
            await turns_taken()
        await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.parametrize(("number", "share", "most"), [(1, 0.75, 1), (2, 0.75, 1), (8, 0.75, 6)])
def test_a_key_has_at_least_one(number: int, share: float, most: int) -> None:
    assert most_of(number, share) == most


async def test_nothing_is_remembered_of_who_holds_no_slot() -> None:
    """Addresses that guess keys take turns, too, and there are very many of them."""
    slots = Slots(1, 1)
    for number in range(3):
        async with slots.hold(f"address {number}"):
            pass
    assert not slots._counts
