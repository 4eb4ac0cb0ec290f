"""Searches and answers on notables give what they gave before the graphs were remade."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden import record

RECORDED: dict[str, dict[str, Any]] = {
    kind: json.loads((Path(record.__file__).parent / f"{kind}.json").read_text(encoding="utf-8"))
    for kind in record.KINDS
}


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
        return {key: near(part) for key, part in value.items()}
    if isinstance(value, list):
        return [near(part) for part in value]
    return value


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, results in RECORDED.items() for name in results]
)
async def test_a_run_gives_what_was_recorded(kind: str, name: str) -> None:
    """Ids, queries, groups, texts and the reason to stop are the same, and numbers nearly."""
    _, results = record.KINDS[kind]
    async for _, result in results([name]):
        assert result == near(RECORDED[kind][name])
