"""The file of an experiment: what it may say, and the sentence for what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import FairqrError, InputError, UnknownAttributeError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.catalogue import SHIPPED, read_experiment
from fairqr.evaluation.experiments.running import make_plan
from fairqr.prompts.library import PromptLibrary
from tests.unit.evaluation.experiments.small import (
    experiment,
    plan_of,
    write_collection,
    write_experiment,
)

PLAIN: dict[str, Any] = {"name": "BM25", "method": "plain"}


SEARCHES = [name for name in SHIPPED if read_experiment(name).spec().kind == "search"]


@pytest.mark.parametrize("name", SEARCHES)
def test_the_shipped_experiments_fit_notables(name: str) -> None:
    """Each loads, and every search of it has a context, a prompt and an attribute that exist."""
    asked = read_experiment(name).spec()
    plan = make_plan(asked, find_collection(asked.collection), PromptLibrary())
    assert plan.manifest.attributes == ("gender", "continent")
    assert len(plan.topics) == 57
    names = [system.name for system in asked.all_systems()]
    assert asked.baseline in names
    forms = len(plan.manifest.query_forms)
    assert len(plan.cells) == len(names) * forms * len(plan.manifest.attributes)
    assert len({cell.key(plan.topics[0]) for cell in plan.cells}) == len(plan.cells)


def test_the_example_of_the_docs_is_an_experiment(tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs" / "how-to" / "run-experiments.md").read_text()
    example = text.split('```yaml title="mine.yaml"\n')[1].split("```")[0]
    (tmp_path / "mine.yaml").write_text(example)
    asked = read_experiment(tmp_path / "mine.yaml").spec({"seeds": [0, 1, 2]})
    plan = make_plan(asked, find_collection(asked.collection), PromptLibrary())
    assert plan.manifest.attributes == ("gender", "gender×continent")
    assert {cell.seed for cell in plan.cells if cell.system.asks_a_model} == {0, 1, 2}
    assert {cell.seed for cell in plan.cells if not cell.system.asks_a_model} == {0}


@pytest.mark.parametrize(("pulled", "usual"), [(False, "bm25"), (True, "hybrid:minilm")])
def test_what_auto_stands_for_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pulled: bool, usual: str
) -> None:
    """The paper's loop searches by words; a corpus that is named may have a ranking of its own."""
    monkeypatch.setattr("fairqr.retrieval.encoders.opening.is_pulled", lambda name: pulled)
    collection = write_collection(tmp_path / "collection")
    systems = [
        PLAIN,
        {"name": "ours"},
        {"name": "paper", "method": "fair-qr"},
        {"name": "vectors", "method": "fair-qr", "retriever": "dense"},
        {"name": "outside", "corpus": "notables"},
    ]
    named = {}
    for given in ({}, {"retriever": "hybrid"}):
        plan = plan_of(collection, tmp_path, systems=systems, **given)
        found = {each.name: each.retriever for each in plan.manifest.experiment.systems}
        assert found == {cell.system.name: cell.system.retriever for cell in plan.cells}
        named[given.get("retriever")] = list(found.values())
    assert named[None] == [usual, usual, "bm25", "dense", "auto"]
    assert named["hybrid"] == ["hybrid", "hybrid", "hybrid", "dense", "hybrid"]


def test_what_varies_is_one_system_for_each_combination(tmp_path: Path) -> None:
    found = experiment(
        tmp_path,
        systems=[
            PLAIN,
            {"name": "at most {max_iterations}", "vary": {"max_iterations": [1, 3]}},
            {"name": "both", "vary": {"max_iterations": [1, 2], "patience": [1, 2]}},
            # Python's format would look up attributes of values, and pad them to any width.
            {"name": "{patience.__class__}", "vary": {"patience": [1]}},
        ],
    )
    systems = {system.name: system.settings for system in found.all_systems()}
    assert systems["at most 3"] == {"max_iterations": 3}
    assert systems["both, max_iterations=2, patience=1"] == {"max_iterations": 2, "patience": 1}
    assert "{patience.__class__}, patience=1" in systems
    assert len(systems) == 1 + 2 + 4 + 1


def _systems(**changes: Any) -> dict[str, Any]:
    return {"systems": [PLAIN, {"name": "other", **changes}]}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"title": None}, "at title: Field required."),
        ({"titel": "t"}, "at titel: Extra inputs are not permitted."),
        ({"topics": 0}, "at topics: Input should be greater than or equal to 1."),
        ({"queries": ["text"]}, "at queries.0: String should match pattern '^title"),
        ({"queries": []}, "the list of queries is empty; name at least one."),
        ({"seeds": []}, "the list of seeds is empty; name at least one."),
        ({"seeds": [-1]}, "at seeds.0: Input should be greater than or equal to 0."),
        ({"seeds": [1, 1]}, "one of the seeds is named twice; name each once."),
        (
            {"attributes": ["gender", "gender"]},
            "one of the attributes is named twice; name each once.",
        ),
        ({"baseline": "none"}, "the baseline 'none' is not one of the systems."),
        ({"systems": [PLAIN, {**PLAIN}]}, "two systems are named 'BM25'."),
        ({"measures": ["nDGC@20"]}, "There is no measure 'nDGC'; did you mean nDCG?"),
        (
            {"judge": "relevance:2"},
            "The target is wrong: the shares of the target must sum to 1, not 2.",
        ),
        ({"target": "x:1"}, "'x'"),
        ({"backend": "tantivy"}, "at backend: Extra inputs are not permitted."),
        ({"corpus": ""}, "at corpus: String should have at least 1"),
        ({"report": ["tables"]}, "at report.0: Input should be 'table'"),
        (_systems(method="best"), "at systems.1.method: Input should be 'fairqr'"),
        (_systems(method="dlf"), "'other' needs weights: give it 'train: {folds: 5}'."),
        (_systems(train={"folds": 1}), "at systems.1.train.folds: Input should be greater than"),
        (_systems(retriever="sparse"), "at systems.1.retriever: String should match pattern"),
        (_systems(settings={"k": 5}), "'k' is set for the whole experiment, not in settings."),
        (_systems(vary={"seed": [1]}), "'seed' is set for the whole experiment, not in settings."),
        (
            _systems(vary={"patience": []}),
            "at systems.1.vary.patience: List should have at least 1",
        ),
        (_systems(settings={"depht": 5}), "There is no parameter 'depht'; did you mean 'depth'?"),
        (_systems(settings={"depth": 4}), "'other': The parameters do not fit: depth is 4, but k"),
        (_systems(vary={"depth": [50, 4]}), "'other, depth=4': The parameters do not fit: depth"),
        (
            _systems(vary={"patience": [1]}) | {"baseline": "other"},
            "the baseline 'other' is not one of the systems.",
        ),
        (
            {"systems": [PLAIN, {"name": "{depth}", "vary": {"patience": [1]}}]},
            "the name '{depth}' has braces that name no setting.",
        ),
        (
            {"systems": [{"name": "a\nb", "method": "plain"}]},
            "the name 'a b' is not one plain",
        ),
        ({"systems": [{"name": "\u202eab"}]}, "is not one plain line; rename it."),
        ({"systems": [{"name": ""}]}, "at systems.0.name: String should have at least 1"),
    ],
)
def test_each_error_has_its_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = write_experiment(tmp_path / "e.yaml", **changes)
    with pytest.raises(InputError) as caught:
        read_experiment(path).spec()
    message = str(caught.value)
    assert sentence in message
    assert str(path) in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"title: [", "line 1 is not valid YAML"),
        (b"- title", "must be a mapping of names to values; fix it."),
        (b"", "must be a mapping of names to values; fix it."),
        (b"title: \xff", "is not valid YAML"),
        (b"kind: poem", "has the unknown kind 'poem'; write one of search, fair_rag, "),
        (b"kind: [search]", "has the unknown kind"),
        (b"title: !!python/object:os.system {}", "is not valid YAML"),
        (b"[" * 5000, "is not valid YAML"),
    ],
)
def test_what_is_no_experiment_at_all(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "e.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_experiment(path).spec()
    assert sentence in str(caught.value)


def test_an_experiment_is_found_by_name_or_by_path(tmp_path: Path) -> None:
    path = write_experiment(tmp_path / "mine.yaml")
    assert read_experiment(str(path)).path == path
    assert read_experiment("prompts").path.name == "prompts.yaml"
    with pytest.raises(InputError, match="There is no experiment 'promts'; name a YAML file, or"):
        read_experiment("promts")


@pytest.mark.parametrize("name", SHIPPED)
def test_each_shipped_experiment_has_a_small_form(name: str) -> None:
    """What the command sets outranks it."""
    file = read_experiment(name)
    small, whole = file.spec({"title": "Mine"}, small=True), file.spec()
    assert small.title == "Mine"
    assert type(small) is type(whole)
    assert small != whole
    own = file._replace(values={"title": "Mine"})
    with pytest.raises(InputError, match="has no small form; leave out --small"):
        own.spec(small=True)


def test_topics_without_keywords_leave_their_form_out(tmp_path: Path) -> None:
    bare = write_collection(tmp_path / "bare", keywords=False)
    plan = plan_of(bare, tmp_path, queries=["title", "title+10"])
    assert plan.manifest.query_forms == ("title",)
    assert plan.manifest.notes == (
        "The topics have no keywords, so only their titles are searched for.",
    )
    with pytest.raises(InputError, match="have no keywords; add 'title' to the queries"):
        plan_of(bare, tmp_path, queries=["title+10"])


def test_what_does_not_fit_the_collection(collection: Collection, tmp_path: Path) -> None:
    with pytest.raises(UnknownAttributeError, match="'colour'"):
        plan_of(collection, tmp_path, attributes=["colour"])
    systems = [PLAIN, {"name": "ours", "settings": {"prompts": {"refine": "v99"}}}]
    with pytest.raises(FairqrError, match="v99"):
        plan_of(collection, tmp_path, systems=systems)
    plan = plan_of(collection, tmp_path, k=5, measures=["nDCG@20"])
    assert "Systems return 5 documents, and measures look at up to 20" in plan.manifest.notes[0]
    systems = [PLAIN, {"name": "DELTR", "method": "deltr", "train": {"folds": 5}}]
    plan = plan_of(collection, tmp_path, systems=systems, topics=3)
    assert plan.manifest.notes == (
        "'DELTR' is trained in 3 folds instead of 5, since there are no more topics.",
    )
    with pytest.raises(InputError, match="'DELTR' is trained on the other topics, and there is"):
        plan_of(collection, tmp_path, systems=systems, topics=1)
