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

SLOW = ModelError("timeout", "Slow.")
MANY = ModelError("rate_limited", "Too many.")


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
    tasks = "a0 a1 a2 b0 b1 c0"
    model = Model()
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
    assert [note.name for note in lines.read() if not note.failed] == ["a0", "a2"]
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
    ("tasks", "failures", "sentence", "done_tasks"),
    [
        ("a0 a1 b0 c0", {"a1": SLOW, "b0": SLOW}, "model b did not answer any question", "a0 c0"),
        # All may be refused for the same reason, as with a wrong option: nothing is left of that.
        (
            "a0 b0 b1",
            {name: refused(name) for name in ("b0", "b1")},
            "model b did not.*Odd; fix",
            "a0",
        ),
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
    lines: Lines[Note], tasks: str, failures: dict[str, Any], sentence: str, done_tasks: str
) -> None:
    """With the kind of the error that ended it."""
    with pytest.raises(FairqrError, match=sentence) if sentence else nullcontext() as caught:
        await Model(**failures).run(tasks, lines)
    if caught is not None:
        last_failure = [
            failure.refusal if isinstance(failure, Done) else failure
            for failure in failures.values()
        ][-1]
        assert type(caught.value) is type(last_failure)
        assert getattr(caught.value, "status", "") == getattr(last_failure, "status", "")
    assert [note.name for note in lines.read()] == done_tasks.split()


@pytest.fixture
def manifest(collection: Collection, tmp_path: Path) -> Manifest:
    return manifest_for(collection, tmp_path)


@pytest.fixture
def store(manifest: Manifest, collection: Collection, tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    fill(folder, manifest, records_of(manifest, collection))
    return folder


@pytest.mark.promise("evaluation")
def test_a_kill_loses_only_the_search_it_hit(store: RunFolder) -> None:
    """A killed experiment goes on and loses no more than the search that the kill hit.

    Cut anywhere in the last two lines: whole lines stay, and writing goes on behind them.
    """
    path = store.lines.path
    written = store.lines.read()
    content = path.read_bytes()
    last_but_one_length, last_length = (
        len(line) for line in content.splitlines(keepends=True)[-2:]
    )
    for cut in range(len(content) - last_but_one_length - last_length, len(content)):
        path.write_bytes(content[:cut])
        whole_lines = content[:cut].count(b"\n")
        assert store.lines.read() == written[:whole_lines]
        with store.lines.writing():
            for record in written[whole_lines:]:
                store.lines.add(record)
        assert path.read_bytes() == content


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

    assert [repr(line.value) for line in lines.read()] == [*map(repr, values)]


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize(
    ("name", "value"),
    [("k", 6), ("judge", "uniform:1"), ("topics", 2)],
    ids=["k", "judge", "topics"],
)
def test_a_run_goes_on_only_with_what_it_was_begun_with(
    store: RunFolder, collection: Collection, tmp_path: Path, name: str, value: Any
) -> None:
    """A folder holds one experiment, and any change of what it was made from stops it.

    Each change that would mix two experiments in one folder is refused, and says which.
    """
    another = manifest_for(collection, tmp_path, **{name: value})

    refusal = rf"holds a run with another experiment \({name}\); choose another"
    with pytest.raises(InputError, match=refusal):
        store.begin(another)


def test_a_run_goes_on_only_with_the_same_judgements(store: RunFolder, manifest: Manifest) -> None:
    fingerprints = {**manifest.fingerprints, "qrels.txt": "0"}
    another = manifest.model_copy(update={"fingerprints": fingerprints})

    refusal = r"holds a run with another fingerprints \(qrels\.txt\); choose another"
    with pytest.raises(InputError, match=refusal):
        store.begin(another)


def test_a_run_goes_on_only_with_the_same_corpus(
    store: RunFolder, collection: Collection, tmp_path: Path
) -> None:
    schema = collection.folder / "schema.yaml"
    schema.write_text(
        schema.read_text().replace("female: 0.5, male: 0.5", "female: 0.4, male: 0.6")
    )
    another = manifest_for(load_collection(collection.folder), tmp_path)

    refusal = r"holds a run with another fingerprints \(corpus\); choose another"
    with pytest.raises(InputError, match=refusal):
        store.begin(another)


def test_other_versions_and_forms_of_settings_may_go_on(
    collection: Collection, tmp_path: Path
) -> None:
    """A date of YAML comes back from the manifest as something else; versions are noted."""
    dated = {"options": {"day": datetime.date(2026, 1, 1)}}
    systems = [{"name": "BM25", "method": "baseline", "train": dated}]
    manifest = manifest_for(collection, tmp_path, systems=systems)
    store = RunFolder(tmp_path / "odd")
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
    sentence = r"is damaged or of another version(;| \(at \w)" if content else "holds no experiment"

    with pytest.raises(InputError, match=sentence):
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
