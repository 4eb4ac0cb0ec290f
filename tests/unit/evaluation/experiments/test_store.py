"""The folder of an experiment: what a kill, a change or a stranger's file does to it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.experiments.folder import Lines, Record, file_name
from fairqr.evaluation.experiments.store import Manifest, SearchRecord, Store
from tests.unit.evaluation.experiments.small import fill, manifest_for, records_of


@pytest.fixture
def manifest(collection: Collection, tmp_path: Path) -> Manifest:
    return manifest_for(collection, tmp_path)


@pytest.fixture
def store(manifest: Manifest, collection: Collection, tmp_path: Path) -> Store:
    found = Store(tmp_path / "run")
    fill(found, manifest, records_of(manifest, collection))
    return found


def _results(store: Store) -> Path:
    return store.folder / "results.jsonl"


def test_a_kill_at_any_byte_loses_no_more_than_the_search_it_hit(
    store: Store, manifest: Manifest, collection: Collection
) -> None:
    """Cut anywhere in the last two lines: whole lines stay, and writing goes on behind them."""
    whole = _results(store).read_bytes()
    written = store.lines.read()
    lines = whole.splitlines(keepends=True)
    start = len(whole) - len(lines[-1]) - len(lines[-2])
    for cut in range(start, len(whole)):
        _results(store).write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        assert store.lines.read() == written[:kept]
        with store.lines.writing():
            for record in written[kept:]:
                store.lines.add(record)
        assert _results(store).read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_told(store: Store) -> None:
    lines = _results(store).read_text().splitlines(keepends=True)
    lines[2] = lines[2][:40] + "\n"
    _results(store).write_text("".join(lines))
    with pytest.raises(InputError, match="line 3, is damaged or of another version; remove"):
        store.lines.read()


def test_records_come_in_an_order_that_is_asked_for(store: Store) -> None:
    first, second, *_, last = store.lines.read()
    with store.lines.writing():
        store.lines.add(second.model_copy(update={"ids": ["d00"]}))
    keys = [last.key, ("no", "such"), second.key, first.key]
    found = list(store.lines.in_order(keys))
    assert found == [last, second.model_copy(update={"ids": ["d00"]}), first]
    store.lines.rewrite(store.lines.in_order(keys))
    assert store.lines.done() == {it.key for it in found}
    assert store.lines.read() == Lines(_results(store), SearchRecord).read() == found
    assert _results(store).read_bytes().count(b"\n") == 3
    assert list(Lines(store.folder / "no.jsonl", SearchRecord).in_order(keys)) == []


class _Value(Record):
    keys = ("name",)

    name: str
    value: float | str | None


NUMBERS = [None, 0.1, 1e-7, 1e300, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize(
    "value", [*NUMBERS, "line\u2028break", "\x85", 'quo"te', "naïve 物理", "\x00"]
)
def test_any_value_comes_back_from_its_line(tmp_path: Path, value: float | str | None) -> None:
    lines = Lines(tmp_path / "values.jsonl", _Value)
    with lines.writing():
        lines.add(_Value(name="it", value=value))
        lines.add(_Value(name="next", value=1.0))
    assert [repr(it.value) for it in lines.read()] == [repr(value), "1.0"]


def test_a_run_goes_on_only_with_what_it_was_begun_with(
    store: Store, collection: Collection, tmp_path: Path
) -> None:
    """Each change that would mix two experiments in one folder is refused, and says which."""
    changes: list[dict[str, Any]] = [{"k": 6}, {"judge": "uniform:1"}, {"topics": 2}]
    for change in changes:
        with pytest.raises(InputError, match=r"holds a run with another experiment \(.*; choose"):
            store.begin(manifest_for(collection, tmp_path, **change))
    fingerprints = {**store.manifest().fingerprints, "qrels.txt": "0"}
    other = store.manifest().model_copy(update={"fingerprints": fingerprints})
    with pytest.raises(
        InputError, match=r"another fingerprints \(qrels\.txt\); choose another folder"
    ):
        store.begin(other)


def test_settings_that_json_writes_otherwise_do_not_stop_a_run_from_going_on(
    collection: Collection, tmp_path: Path
) -> None:
    """A tuple, or a date of YAML, comes back from the manifest as something else."""
    given = manifest_for(collection, tmp_path, systems=[{"name": "BM25", "method": "mmr"}])
    odd = given.experiment.systems[0].model_copy(update={"settings": {"options": {"pair": (1, 2)}}})
    experiment = given.experiment.model_copy(update={"systems": (odd,)})
    manifest = given.model_copy(update={"experiment": experiment})
    store = Store(tmp_path / "odd")
    store.begin(manifest)
    assert store.manifest() != manifest
    assert store.begin(manifest).topics == manifest.topics


def test_other_versions_are_noted(store: Store, manifest: Manifest) -> None:
    versions = {**manifest.versions, "numpy": "99.0"}
    went_on = store.begin(manifest.model_copy(update={"versions": versions}))
    old = manifest.versions["numpy"]
    assert went_on.versions["numpy"] == f"{old}, then 99.0"
    assert store.manifest() == went_on
    assert store.begin(went_on.model_copy(update={"versions": versions})) == went_on


def test_a_folder_with_other_files_is_left_alone(manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="is not empty and has no experiment; choose another"):
        Store(tmp_path / "mine").begin(manifest)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "precious"


def test_what_a_kill_at_the_beginning_leaves_is_no_other_file(
    manifest: Manifest, tmp_path: Path
) -> None:
    store = Store(tmp_path / "run")
    with store.locked():
        (store.folder / ".experiment.json.0123456789abcdef").write_text("{")
        assert store.begin(manifest) == manifest


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 1, "strange": 2}'])
def test_a_damaged_manifest(tmp_path: Path, content: str) -> None:
    (tmp_path / "experiment.json").write_text(content)
    with pytest.raises(InputError, match=r"is damaged or of another version(;| \(at \w)"):
        Store(tmp_path).manifest()


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=80)


@given(st.lists(names, min_size=1, max_size=3), st.lists(names, min_size=1, max_size=3))
def test_names_of_files_are_safe_and_tell_all_apart(ours: list[str], others: list[str]) -> None:
    name = file_name(*ours)
    assert len(name.encode()) <= 150
    assert not set(name) & set("/\\\0 \n'\"<>&*?:")
    assert (name == file_name(*others)) == (ours == others)
