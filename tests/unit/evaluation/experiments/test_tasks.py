"""The engine and its folder: each task once; what a kill, a change or a stranger's file does."""

from __future__ import annotations

import datetime
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairqr
from fairqr.base.errors import FairqrError, IndexUnavailableError, InputError, ModelError
from fairqr.evaluation.collections.collection import Collection, load_collection
from fairqr.evaluation.experiments.folder import Lines, Record, file_name
from fairqr.evaluation.experiments.specification import Manifest, RunFolder
from fairqr.evaluation.experiments.tasks import GIVE_UP, Done, Tasks, run_tasks
from fairqr.evaluation.experiments.workers import RunOptions
from tests.unit.evaluation.experiments.small import fill, manifest_for, records_of
from tests.unit.evaluation.watching import Watcher

SLOW, MANY = ModelError("timeout", "Slow."), ModelError("rate_limited", "Too many.")


class Note(Record):
    """A record of a test."""

    keys = ("name",)

    name: str
    failed: bool = False

    @property
    def is_final(self) -> bool:
        return not self.failed


@pytest.fixture
def lines(tmp_path: Path) -> Lines[Note]:
    return Lines(tmp_path / "notes.jsonl", Note)


class Model:
    """Answers tasks, but for those that it is told to fail at; the first letter is their place."""

    def __init__(self, **failures: FairqrError | Done[Note]) -> None:
        self.failures = failures
        self.asked: list[str] = []
        self.started: list[str] = []
        self.watcher = Watcher()

    async def run(self, tasks: str, lines: Lines[Note], **options: Any) -> None:
        at_once = options.pop("at_once", 1)
        plan = Tasks(
            tasks=tasks.split(),
            do=self.answer,
            lines=lines,
            title="tasks",
            keys=lambda task: [(task,)],
            start=self.start,
            name_at=lambda place: f"model {place}",
            place=lambda task: task[0],
            **options,
        )
        await run_tasks(plan, watcher=self.watcher, at_once=at_once)

    async def start(self, place: str) -> None:
        self.started.append(place)

    async def answer(self, task: str) -> Done[Note]:
        self.asked.append(task)
        failure = self.failures.get(task, Done((Note(name=task),), ("Said once.",)))
        if isinstance(failure, FairqrError):
            raise failure
        return failure


@pytest.mark.promise("evaluation")
async def test_each_task_is_done_once(lines: Lines[Note]) -> None:
    """The order in which searches end, and how many run at once, change no result."""
    tasks, model = "a0 a1 a2 b0 b1 c0", Model()
    await model.run("a1 a2", lines)
    await model.run(tasks, lines, at_once=3)
    await model.run(tasks, lines)
    assert model.watcher.stages == [("tasks", 2, 0), ("tasks", 6, 2)]
    assert (model.watcher.steps, model.watcher.notes) == (6, ["Said once."] * 2)
    assert sorted(model.asked) == tasks.split()
    assert model.started == ["a", "a", "b", "c"]


@pytest.mark.parametrize("error", [SLOW, IndexUnavailableError("Slow.")])
async def test_what_is_away_is_not_done_and_is_asked_again(
    error: FairqrError, lines: Lines[Note]
) -> None:
    """A failure is never a result; an audit's report may tell of it by a record."""
    model = Model(a1=error, a3=Done((Note(name="a3", failed=True),), away=error))
    with pytest.raises(type(error), match=r"^2 of 4 tasks are not done, .*: Slow; run again"):
        await model.run("a0 a1 a2 a3", lines)
    assert [it.name for it in lines.read() if not it.failed] == ["a0", "a2"]
    await model.run("a0 a1 a2 a3", lines, tolerated=type(error))
    model.failures = {}
    await model.run("a0 a1 a2 a3", lines)
    assert model.asked == ["a0", "a1", "a2", "a3", *["a1", "a3"] * 2]
    assert not any(note.failed for note in lines.read())


def refused(name: str) -> Done[Note]:
    return Done((Note(name=name),), refusal=ModelError("invalid_request", "Odd."))


FEW = [f"a{n}" for n in range(GIVE_UP - 1)]
MORE = [f"b{n}" for n in range(GIVE_UP + 5)]


@pytest.mark.parametrize(
    ("tasks", "failures", "told", "kept"),
    [
        ("a0 a1 b0 c0", {"a1": SLOW, "b0": SLOW}, "model b did not answer any question", "a0 c0"),
        # All may be refused for the same reason, as with a wrong option: nothing is left of that.
        ("a0 b0 b1", {it: refused(it) for it in ("b0", "b1")}, "model b did not.*Odd; fix", "a0"),
        ("a0 a1", {"a1": refused("a1")}, "", "a0 a1"),
        ("a0 a1", {"a0": refused("a0")}, "1 of 2 tasks are not done.*Odd; run again", "a1"),
        (" ".join(MORE), dict.fromkeys(MORE, MANY), f"model b failed {GIVE_UP} times in a row", ""),
        # An answer in between says that it is there.
        (" ".join([*FEW, "a", *FEW]), dict.fromkeys(FEW, MANY), "are not done.*Too many", "a"),
        ("a0 a1 a2", {"a1": InputError("Bad.")}, "^Bad", "a0"),
        ("a0 a1 a2", {"a1": ModelError("parse_error", "Odd.")}, "^Odd", "a0"),
    ],
)
async def test_how_a_run_ends(
    lines: Lines[Note], tasks: str, failures: dict[str, Any], told: str, kept: str
) -> None:
    """With the kind of the error that ended it."""
    with pytest.raises(FairqrError, match=told) if told else nullcontext() as ended:
        await Model(**failures).run(tasks, lines)
    if ended is not None:
        last = [it.refusal if isinstance(it, Done) else it for it in failures.values()][-1]
        assert type(ended.value) is type(last)
        assert getattr(ended.value, "status", "") == getattr(last, "status", "")
    assert [note.name for note in lines.read()] == kept.split()


@pytest.fixture
def manifest(collection: Collection, tmp_path: Path) -> Manifest:
    return manifest_for(collection, tmp_path)


@pytest.fixture
def store(manifest: Manifest, collection: Collection, tmp_path: Path) -> RunFolder:
    found = RunFolder(tmp_path / "run")
    fill(found, manifest, records_of(manifest, collection))
    return found


@pytest.mark.promise("evaluation")
def test_a_kill_loses_only_the_search_it_hit(store: RunFolder) -> None:
    """A killed experiment goes on and loses no more than the search that the kill hit.

    Cut anywhere in the last two lines: whole lines stay, and writing goes on behind them.
    """
    path, written = store.lines.path, store.lines.read()
    whole = path.read_bytes()
    last, one = (len(line) for line in whole.splitlines(keepends=True)[-2:])
    for cut in range(len(whole) - last - one, len(whole)):
        path.write_bytes(whole[:cut])
        kept = whole[:cut].count(b"\n")
        assert store.lines.read() == written[:kept]
        with store.lines.writing():
            for record in written[kept:]:
                store.lines.add(record)
        assert path.read_bytes() == whole


class _Value(Record):
    keys = ("name",)

    name: str
    value: float | str | None


def test_any_value_comes_back_from_its_line(tmp_path: Path) -> None:
    texts = ("line\u2028break", "\x85", 'quo"te', "naïve 物理", "\x00")
    values = [None, 0.1, 1e-7, 1e300, math.inf, -math.inf, math.nan, *texts]
    lines = Lines(tmp_path / "values.jsonl", _Value)
    with lines.writing():
        for value in values:
            lines.add(_Value(name=repr(value), value=value))
    assert [repr(it.value) for it in lines.read()] == [*map(repr, values)]


@pytest.mark.promise("evaluation")
def test_a_run_goes_on_only_with_what_it_was_begun_with(
    store: RunFolder, manifest: Manifest, collection: Collection, tmp_path: Path
) -> None:
    """A folder holds one experiment, and any change of what it was made from stops it.

    Each change that would mix two experiments in one folder is refused, and says which.
    """
    fingerprints = {**manifest.fingerprints, "qrels.txt": "0"}
    other = manifest.model_copy(update={"fingerprints": fingerprints})
    others = {r"fingerprints \(qrels\.txt\)": other}
    for name, value in {"k": 6, "judge": "uniform:1", "topics": 2}.items():
        others[rf"experiment \({name}\)"] = manifest_for(collection, tmp_path, **{name: value})
    schema = collection.folder / "schema.yaml"
    schema.write_text(
        schema.read_text().replace("female: 0.5, male: 0.5", "female: 0.4, male: 0.6")
    )
    others[r"fingerprints \(corpus\)"] = manifest_for(load_collection(collection.folder), tmp_path)
    for told, other in others.items():
        with pytest.raises(InputError, match=f"holds a run with another {told}; choose another"):
            store.begin(other)


def test_other_versions_and_forms_of_settings_may_go_on(
    collection: Collection, tmp_path: Path
) -> None:
    """A date of YAML comes back from the manifest as something else; versions are noted."""
    dated = {"options": {"day": datetime.date(2026, 1, 1)}}
    systems = [{"name": "BM25", "method": "baseline", "train": dated}]
    manifest, store = (
        manifest_for(collection, tmp_path, systems=systems),
        RunFolder(tmp_path / "odd"),
    )
    store.begin(manifest)
    assert store.manifest() != manifest
    newer = manifest.model_copy(update={"versions": {**manifest.versions, "numpy": "99.0"}})
    went_on = store.begin(newer)
    assert went_on.versions["numpy"] == f"{manifest.versions['numpy']}, then 99.0"
    assert store.begin(newer) == store.manifest() == went_on


def test_only_other_files_keep_a_folder_from_being_used(manifest: Manifest, tmp_path: Path) -> None:
    """What a kill at the beginning leaves is none."""
    store = RunFolder(tmp_path / "run")
    with store.locked():
        (store.folder / ".experiment.json.0123456789abcdef").write_text("{")
        assert store.begin(manifest) == manifest
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="is not empty and has no experiment; choose another"):
        RunFolder(tmp_path).begin(manifest)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "strange": 2}'])
def test_a_damaged_manifest_is_named(tmp_path: Path, content: str) -> None:
    if content:
        (tmp_path / "experiment.json").write_text(content)
    told = r"is damaged or of another version(;| \(at \w)" if content else "holds no experiment"
    with pytest.raises(InputError, match=told):
        fairqr.load_experiment(tmp_path)


def test_a_damaged_line_in_the_middle_is_named(store: RunFolder) -> None:
    lines = store.lines.path.read_text().splitlines(keepends=True)
    store.lines.path.write_text("".join([*lines[:2], lines[2][:40] + "\n", *lines[3:]]))
    with pytest.raises(InputError, match="line 3, is damaged or of another version; remove"):
        store.lines.read()


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=80)


@given(st.lists(names, min_size=1, max_size=3), st.lists(names, min_size=1, max_size=3))
def test_names_of_files_are_safe_and_tell_all_apart(ours: list[str], others: list[str]) -> None:
    name = file_name(*ours)
    assert len(name.encode()) <= 150
    assert not set(name) & set("/\\\0 \n'\"<>&*?:")
    assert (name == file_name(*others)) == (ours == others)


@pytest.mark.parametrize("text", ["4", "ray://host", "ray://user:secret@host:1", "http://h:1"])
async def test_unknown_workers_are_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Workers are ray://local or ray://HOST:PORT, not '"):
        async with RunOptions(tmp_path, workers=text).tools(tmp_path / "replies.sqlite"):
            pass
