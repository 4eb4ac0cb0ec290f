"""The folder of a probe collection: what is read back, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.probes.building import build_probe_collection
from fairqr.evaluation.probes.collection import (
    ProbeCollection,
    check_folder,
    read_probe_collection,
    write_probe_collection,
)
from fairqr.evaluation.probes.specification import ProbeSettings
from tests.unit.evaluation.probes.small_collections import people, sides_of


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> ProbeCollection:
    """Three queries of eight items each."""
    collection = people(tmp_path_factory.mktemp("people"))
    sides = sides_of(collection.corpus.schema)
    return asyncio.run(build_probe_collection(collection, sides, ProbeSettings(size=8)))


def test_what_is_written_is_read_back(built: ProbeCollection, tmp_path: Path) -> None:
    """All of it; one query a line, and nothing else beside the two files."""
    folder = tmp_path / "new" / "folder"
    write_probe_collection(built, folder)
    assert read_probe_collection(folder) == built
    assert sorted(path.name for path in folder.iterdir()) == ["probe.json", "queries.jsonl"]
    lines = (folder / "queries.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["a", "b", "c"]


def test_text_of_any_kind_stays_on_its_line(built: ProbeCollection, tmp_path: Path) -> None:
    """Line feeds, separators that some readers take for one, and other scripts."""
    odd = "one\ntwo\u2028three\x85four\r\n«五»"
    item = built.queries[0].items[0].model_copy(update={"text": odd, "title": odd})
    query = built.queries[0].model_copy(update={"items": (item, *built.queries[0].items[1:])})
    changed = built.model_copy(update={"queries": (query, *built.queries[1:])})
    write_probe_collection(changed, tmp_path / "odd")
    assert read_probe_collection(tmp_path / "odd").queries[0].items[0].text == odd


def test_the_same_is_written_again_and_another_is_refused(
    built: ProbeCollection, tmp_path: Path
) -> None:
    """Results may rest on what is there; the sentence says what differs."""
    write_probe_collection(built, tmp_path)
    before = (tmp_path / "queries.jsonl").read_bytes()
    write_probe_collection(built, tmp_path)
    assert (tmp_path / "queries.jsonl").read_bytes() == before
    changes = {"seed": 1, "order": "bm25"}
    other = built.model_copy(update={"manifest": built.manifest.model_copy(update=changes)})
    with pytest.raises(InputError, match=r"holds another probe collection \(order, seed\); choose"):
        write_probe_collection(other, tmp_path)
    assert read_probe_collection(tmp_path) == built


def test_what_a_kill_left_is_completed(built: ProbeCollection, tmp_path: Path) -> None:
    """The manifest without its queries, or the half of the file that was to become it."""
    write_probe_collection(built, tmp_path / "one")
    (tmp_path / "one" / "queries.jsonl").unlink()
    with pytest.raises(InputError, match=r"queries.jsonl cannot be read .*run the probe"):
        read_probe_collection(tmp_path / "one")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / ".probe.json.0123").write_text("{")
    for name in ("one", "two"):
        write_probe_collection(built, tmp_path / name)
        assert read_probe_collection(tmp_path / name) == built


def test_a_folder_with_something_else_is_refused(built: ProbeCollection, tmp_path: Path) -> None:
    """Nothing is written then, neither beside a user's files nor in place of one."""
    (tmp_path / "queries.jsonl").write_text("mine")
    with pytest.raises(InputError, match="is not empty and has no probe collection; choose"):
        write_probe_collection(built, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["queries.jsonl"]
    with pytest.raises(InputError, match="is a file; name a folder"):
        check_folder(tmp_path / "queries.jsonl")
    with pytest.raises(InputError, match="cannot be written to"):
        write_probe_collection(built, tmp_path / "queries.jsonl" / "below")
    check_folder(tmp_path / "new")


def first_line(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Change the first query of a folder."""

    def mend(folder: Path) -> None:
        path = folder / "queries.jsonl"
        lines = path.read_text().splitlines()
        data = json.loads(lines[0])
        change(data)
        path.write_text("\n".join([json.dumps(data), *lines[1:]]) + "\n")

    return mend


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def mend(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return mend


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "probe.json").unlink(), "holds no probe collection"),
        (replaced("probe.json", '"format": 1', '"format": 2'), r"other version \(at format\)"),
        (replaced("probe.json", '"seed"', '"sead"'), r"damaged or of another version \(at "),
        (lambda folder: (folder / "probe.json").write_text("[]"), "damaged or of another version;"),
        (replaced("probe.json", '"queries": 3', '"queries": 4'), r"3 queries .* says \(4 queries"),
        (replaced("queries.jsonl", '"id": "b"', '"id": "a"'), "has a query twice"),
        (replaced("queries.jsonl", "Title", '"'), "queries.jsonl, line 1, is damaged"),
        (first_line(lambda data: data["items"].pop()), "line 1, has other numbers of items"),
        (
            first_line(lambda data: data["items"].clear()),
            "line 1, has items in fewer than two cells.*; build the collection again",
        ),
        (
            first_line(lambda data: data["items"].__setitem__(0, data["items"][1])),
            r"line 1, is damaged \(an item appears twice\)",
        ),
        (
            first_line(lambda data: data["items"][0].update(relevant="perhaps")),
            "line 1, is damaged",
        ),
        (first_line(lambda data: data.update(short={"neither": 1})), "line 1, is damaged"),
        (
            lambda folder: (folder / "queries.jsonl").write_bytes(
                (folder / "queries.jsonl").read_bytes()[:-100]
            ),
            "line 3, is damaged",
        ),
        (lambda folder: (folder / "queries.jsonl").write_text(""), "has 0 queries with other"),
        (lambda folder: (folder / "queries.jsonl").write_bytes(b"\xff\n"), "line 1, is damaged"),
    ],
)
def test_damage_is_said(
    built: ProbeCollection, tmp_path: Path, change: Callable[[Path], object], words: str
) -> None:
    """In one sentence, with the place."""
    write_probe_collection(built, tmp_path)
    change(tmp_path)
    with pytest.raises(InputError, match=words) as raised:
        read_probe_collection(tmp_path)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)
