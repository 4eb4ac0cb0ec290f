"""Searches of notables give what they gave before the engines were remade."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden import record

RECORDED: dict[str, Any] = json.loads(
    (Path(record.__file__).parent / "searches.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module", autouse=True)
def own_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Index notables once, in a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRQR_DATA_DIR", str(tmp_path_factory.mktemp("data")))
        yield


def near(value: Any) -> Any:
    """The same value, in which each number stands for those next to it."""
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-6)
    if isinstance(value, dict):
        return {key: near(one) for key, one in value.items()}
    return [near(one) for one in value] if isinstance(value, list) else value


def test_every_recorded_search_is_repeated() -> None:
    assert RECORDED.keys() == record.CASES.keys()


@pytest.mark.parametrize("name", record.CASES)
async def test_a_search_gives_what_was_recorded(name: str) -> None:
    """Ids, queries, groups and the reason to stop are the same, and numbers nearly."""
    async for _, found in record.results([name]):
        assert found == near(RECORDED[name])
