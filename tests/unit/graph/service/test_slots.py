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


async def wait_for(slots: Slots, keys: list[str], served: list[str]) -> list[asyncio.Task[None]]:
    """Begin to wait for a slot for each key, in this order."""

    async def wait(key: str) -> None:
        await slots.acquire(key)
        served.append(key)

    tasks = [asyncio.create_task(wait(key)) for key in keys]
    await settle()
    return tasks


async def settle() -> None:
    """Let all tasks take their turns."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.promise("service")
async def test_keys_take_turns_and_none_takes_all() -> None:
    """Runs of all keys take turns for the slots, and no key takes all of them, so that none keeps
    the others waiting.
    """
    slots = Slots(4, 0.75)
    served: list[str] = []
    await wait_for(slots, ["a"] * 6, served)

    assert served == ["a"] * 3, "a slot is left for others"

    await wait_for(slots, ["b", "c", "b"], served)
    assert served[3:] == ["b"]

    for key in ("a", "a", "b", "c"):
        slots.release(key)
        await settle()
    assert served[4:] == ["c", "a", "b", "a"]


async def test_without_keys_all_slots_are_taken_in_the_order_of_coming() -> None:
    slots = Slots(2, 0.5)
    served: list[str] = []
    await wait_for(slots, [NOBODY] * 3, served)

    assert len(served) == 2

    slots.release(NOBODY)
    await settle()
    assert len(served) == 3


async def test_whoever_leaves_takes_no_slot_along() -> None:
    slots = Slots(1, 1)
    served: list[str] = []
    _, second, third = await wait_for(slots, ["a", "b", "c"], served)
    second.cancel()
    await settle()
    slots.release("a")
    third.cancel()  # at the moment in which it gets its slot
    await settle()
    await wait_for(slots, ["d"], served)

    assert served == ["a", "d"]


@pytest.mark.parametrize(
    "others", [[], ["b"], ["c"], ["b", "c"]], ids=["nobody", "own key", "another key", "both"]
)
async def test_whoever_leaves_as_a_slot_becomes_free_loses_none(
    others: list[str],
) -> None:
    """The slot is given back after whoever waits was cancelled, and before that is known."""
    slots = Slots(1, 1)
    served: list[str] = []
    await slots.acquire("a")
    leaving, *_ = await wait_for(slots, ["b", *others], served)
    leaving.cancel()
    slots.release("a")
    await settle()

    assert leaving.cancelled()

    for number in range(len(others)):
        slots.release(served[number])
        await settle()
    assert sorted(served) == others

    await asyncio.wait_for(slots.acquire("d"), PATIENCE)


@given(data=st.data())
def test_no_slot_is_lost_in_whichever_way_some_leave(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 3))
    keys = data.draw(st.lists(st.sampled_from("abc"), max_size=9))
    steps = data.draw(st.lists(st.sampled_from(["leave", "release", "go on"])))

    async def run() -> None:
        slots = Slots(number, 1)
        served: list[str] = []
        tasks = await wait_for(slots, keys, served)
        released = 0
        for step in steps:
            if step == "leave" and tasks:
                tasks.pop(data.draw(st.integers(0, len(tasks) - 1))).cancel()
            elif step == "release" and released < len(served):
                slots.release(served[released])
                released += 1
            else:
                await settle()
        await settle()
        while released < len(served):
            slots.release(served[released])
            released += 1
            await settle()

        for _ in range(number):
            await asyncio.wait_for(slots.acquire("d"), PATIENCE)

    asyncio.run(run())


async def test_an_open_gate_lets_all_in() -> None:
    slots = Slots(1, 1)
    served: list[str] = []
    await wait_for(slots, ["a", "b", "c"], served)
    slots.open()
    await wait_for(slots, ["d"], served)

    assert sorted(served) == ["a", "b", "c", "d"]


class Holders:
    """Who holds slots and who still waits for one."""

    def __init__(self, comers: list[str], most: int) -> None:
        self.waiting = list(comers)
        self.held: Counter[str] = Counter()
        self.most = most

    def serve(self, keys: list[str]) -> None:
        for key in keys:
            self.held[key] += 1
            self.waiting.remove(key)

    def release(self) -> str:
        """Return a key that gives one of its slots back."""
        key = next(key for key, number in self.held.items() if number)
        self.held[key] -= 1
        return key

    @property
    def greedy(self) -> list[str]:
        """The keys that hold more than they may."""
        keys = self.held.keys() - {NOBODY}
        return [key for key in keys if self.held[key] > self.most]

    @property
    def entitled(self) -> list[str]:
        """The keys that wait and may have another slot."""
        return [key for key in self.waiting if key == NOBODY or self.held[key] < self.most]


@given(
    number=st.integers(1, 8),
    share=st.floats(0.1, 1),
    comers=st.lists(st.sampled_from(["a", "b", "c", NOBODY]), min_size=1, max_size=30),
)
def test_no_slot_is_idle_while_somebody_may_have_it(
    number: int, share: float, comers: list[str]
) -> None:
    """In whichever order they come: while a key waits, it holds its most, or all slots are held."""

    async def run() -> None:
        slots = Slots(number, share)
        served: list[str] = []
        tasks = await wait_for(slots, comers, served)
        holders = Holders(comers, most_of(number, share))
        seen = 0
        while seen < len(comers):
            holders.serve(served[seen:])
            seen = len(served)
            assert holders.held.total() <= number
            assert not holders.greedy
            assert holders.held.total() == number or not holders.entitled

            slots.release(holders.release())
            await settle()
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
