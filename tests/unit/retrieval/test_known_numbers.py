"""Numbers are remembered for one state of an index, and no longer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from fairqr.retrieval.catalog import Catalog
from fairqr.retrieval.documents import Document
from fairqr.retrieval.known_numbers import KnownNumbers

SCHEMA = "attributes:\n  gender: {field: g, groups: [female, male]}\n"


def test_what_was_read_in_another_state_is_forgotten_and_never_kept() -> None:
    known, loads = KnownNumbers(), []

    def renew(stamp: tuple[int, int] | None) -> None:
        known.renew(stamp, lambda: loads.append(stamp))

    renew((1, 1))
    known.put((1, 1), "field", {"a": 3})
    assert known.get("field", ["a", "b"]) == {"a": 3}
    assert known.get("other", ["a"]) == {}
    renew((1, 1))
    assert known.get("field", ["a"]) == {"a": 3}
    known.put((2, 2), "field", {"b": 4})
    assert known.get("field", ["b"]) == {}
    renew((2, 2))
    assert known.get("field", ["a"]) == {}
    known.put((2, 2), "field", {"a": 5})
    renew(None)
    known.put(None, "field", {"a": 3})
    assert known.get("field", ["a"]) == {}
    assert loads == [(1, 1), (2, 2)], "loaded once for each state that there is"


def test_no_more_is_remembered_than_the_limit() -> None:
    known = KnownNumbers(limit=3)
    known.renew((1, 1), lambda: None)
    for number in range(10):
        known.put((1, 1), "field", {str(number): number})
    assert len(known.get("field", [str(number) for number in range(10)])) <= 3


async def test_a_label_that_another_handle_changes_is_seen_at_once(tmp_path: Path) -> None:
    (tmp_path / "schema.yaml").write_text(SCHEMA)
    lines = [{"id": str(n), "text": "science", "g": "female"} for n in range(5)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    catalog = Catalog(tmp_path / "data")
    reader = await catalog.resolve(str(tmp_path / "d.jsonl"))
    writer = await Catalog(tmp_path / "data").resolve(str(tmp_path / "d.jsonl"))
    ids = [str(n) for n in range(6)]
    for changed in range(5):
        before = (await reader.memberships("gender", ids)).tolist()
        assert before == [[0, 1]] * changed + [[1, 0]] * (5 - changed) + [[0, 0]]
        await writer.upsert([Document(str(changed), "", "science", {"g": "male"})])
    await writer.delete(["0"])
    assert (await reader.memberships("gender", ["0", "1"])).tolist() == [[0, 0], [0, 1]]
    at_once = await asyncio.gather(*(reader.memberships("gender", ids) for _ in range(20)))
    assert all((found == at_once[0]).all() for found in at_once)
