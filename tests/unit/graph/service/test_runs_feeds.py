"""Events in memory: who reads when gets what, and how much is held."""

from __future__ import annotations

import asyncio

from fairqr.graph.service.records import Event
from fairqr.graph.service.runs.feeds import Feed


def step(number: int) -> Event:
    return Event(number=number, name="step", data={})


def token(text: str) -> Event:
    return Event(number=0, name="token", data={"text": text})


async def read(feed: Feed, after: int = 0) -> list[int | str]:
    return [event.number or event.data["text"] async for event in feed.read(after)]


async def test_each_reader_gets_all_events_in_order_whenever_it_comes() -> None:
    feed = Feed()
    early = asyncio.create_task(read(feed))
    feed.tell(step(1))
    await asyncio.sleep(0)
    feed.tell(token("a"))
    feed.tell(step(2))
    late = asyncio.create_task(read(feed))
    feed.close()
    assert await early == await late == await read(feed) == [1, "a", 2]


async def test_who_comes_again_gets_what_it_does_not_know_and_no_old_pieces_of_text() -> None:
    feed = Feed()
    for event in (step(1), token("a"), step(2), token("b")):
        feed.tell(event)
    reader = asyncio.create_task(read(feed, after=1))
    await asyncio.sleep(0)
    feed.tell(token("c"))
    feed.close()
    assert await reader == [2, "c"]


async def test_a_reader_that_is_too_slow_comes_to_the_end() -> None:
    feed = Feed(limit=2)
    feed.tell(step(1))
    reader = feed.read()
    assert (await anext(reader)).number == 1
    for number in (2, 3, 4, 5):
        feed.tell(step(number))
    feed.close()
    assert [event.number async for event in reader] == []


def test_it_tells_what_it_holds() -> None:
    feed = Feed(limit=2)
    assert feed.covers(0)
    for number in (1, 2, 3):
        feed.tell(step(number))
    assert not feed.covers(0)
    assert feed.covers(1)
