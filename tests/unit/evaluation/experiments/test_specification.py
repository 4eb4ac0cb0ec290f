"""The file of an experiment: what it may say, and the sentence for what it may not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import (
    FairqrError,
    InputError,
    PromptError,
    TargetError,
    UnknownAttributeError,
)
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection
from fairqr.evaluation.experiments.catalogue import SHIPPED, read_experiment
from fairqr.evaluation.experiments.running import cells_of, manifest_of
from fairqr.evaluation.experiments.specification import Manifest
from fairqr.prompts.library import PromptLibrary
from tests.unit.evaluation.experiments.small import (
    experiment,
    manifest_for,
    write_collection,
    write_experiment,
)

BASELINE: dict[str, Any] = {"name": "BM25", "method": "baseline"}


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_experiments_fit_notables(name: str) -> None:
    """Every shipped experiment can be run on notables.

    Every search has a context, a prompt and an attribute that exist. The command outranks.
    """
    file = read_experiment(name)
    small, whole = file.spec({"title": "Mine"}, small=True), file.spec()
    assert (small.title, type(small)) == ("Mine", type(whole))
    assert small != whole
    if whole.kind == "search":
        collection = find_collection(whole.collection)
        manifest = manifest_of(whole, collection, PromptLibrary())
        assert manifest.attributes == ("gender", "continent")
        assert len(manifest.topics) == 57
        forms, systems = manifest.query_forms, manifest.experiment.systems
        cells = cells_of(manifest, collection, collection.corpus_name)
        runs = sum(len(manifest.experiment.seeds_of(system)) for system in systems)
        assert len(cells) == 2 * len(forms) * runs


def test_what_auto_stands_for_is_written_down(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper's loop searches by words; a corpus that is named may have a ranking of its own."""
    systems = [
        BASELINE,
        {"name": "paper", "method": "fair-qr"},
        {"name": "vectors", "method": "fair-qr", "retriever": "dense"},
        {"name": "outside", "corpus": "notables"},
    ]
    for is_pulled, retriever, expected in (
        (False, "auto", ["bm25", "bm25", "dense", "auto"]),
        (True, "auto", ["hybrid:minilm", "bm25", "dense", "auto"]),
        (True, "hybrid", ["hybrid", "hybrid", "dense", "hybrid"]),
    ):
        place = "fairqr.retrieval.encoders.opening.is_pulled"
        monkeypatch.setattr(place, lambda name, is_pulled=is_pulled: is_pulled)
        manifest = manifest_for(collection, tmp_path, systems=systems, retriever=retriever)
        assert [system.retriever for system in manifest.experiment.systems] == expected
        assert Manifest.model_validate_json(manifest.text) == manifest, "it comes back as it is"


def test_one_option_names_the_protected_group_of_all_systems(tmp_path: Path) -> None:
    """Where a system names one itself, that stays; if no system protects a group, it is refused."""
    systems = [
        BASELINE,
        {"name": "FA*IR", "method": "fa-ir"},
        {"name": "own", "method": "fa-ir", "settings": {"options": {"protected": "male"}}},
        {"name": "DELTR", "method": "deltr", "train": {"folds": 2}},
    ]
    plain, ours, own, learnt = experiment(tmp_path, systems=systems, protected="female").systems
    assert plain.settings == {}
    assert ours.context(k=5).options == {"protected": "female"}
    assert own.context(k=5).options == {"protected": "male"}
    assert learnt.train is not None
    assert learnt.train.options == {"protected": "female"}
    with pytest.raises(InputError, match="no system protects a group"):
        experiment(tmp_path, systems=[BASELINE], protected="female")


def test_what_varies_is_one_system_for_each_combination(tmp_path: Path) -> None:
    vary = {"max_iterations": [1, 2], "patience": [1, 2]}
    both = {"name": "both {max_iterations} {patience}", "vary": vary, "model": "feedback"}
    odd = {"name": "{patience.__class__}", "vary": {"patience": [1]}}
    found = experiment(tmp_path, systems=[BASELINE, both, odd])
    systems = {system.name: (system.settings, system.model) for system in found.systems}
    assert systems["both 2 1"] == ({"max_iterations": 2, "patience": 1}, "feedback")
    assert systems["{patience.__class__}"] == ({"patience": 1}, found.model)
    assert len(systems) == 1 + 4 + 1


def _other(**changes: Any) -> dict[str, Any]:
    return {"systems": [BASELINE, {"name": "other", **changes}]}


def test_each_error_has_its_sentence(tmp_path: Path) -> None:
    for changes, sentence in (
        ({"queries": []}, "the list of queries is empty; name at least one."),
        ({"attributes": ["gender"] * 2}, "one of the attributes is named twice; name each once."),
        ({"baseline": "none"}, "the baseline 'none' is not one of the systems."),
        ({"judge": "relevance:2"}, "the shares of the target must sum to 1, not 2."),
        ({"systems": [{"name": "\u202eab\n"}]}, "is not one plain name"),
        (_other(vary={"patience": [1, 2]}), "'other' is not one plain name of one system."),
        (_other(method="dlf"), "'other' needs weights: give it 'train: {folds: 5}'."),
        (_other(vary={"seed": [1]}), "'seed' is set for the whole experiment, not in settings."),
        (b"kind: poem", "has no kind; write 'kind: ' and one of search, fair_rag, "),
        (b"title: Mine", "has no small form; leave out --small"),
    ):
        path = write_experiment(
            tmp_path / "e.yaml", **({} if isinstance(changes, bytes) else changes)
        )
        if isinstance(changes, bytes):
            path.write_bytes(changes)
        with pytest.raises(InputError) as caught:
            read_experiment(path).spec(small=changes == b"title: Mine")
        assert sentence in str(caught.value)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_does_not_fit_the_collection_is_refused_first(tmp_path: Path) -> None:
    """Topics without keywords leave their form out."""
    bare = write_collection(tmp_path / "bare", keywords=False)
    assert manifest_for(bare, tmp_path, queries=["title", "title+10"]).query_forms == ("title",)
    systems = [BASELINE, {"name": "ours", "settings": {"prompts": {"refine": "v99"}}}]
    with pytest.raises(UnknownAttributeError, match="'colour'"):
        manifest_for(bare, tmp_path, attributes=["colour"])
    protecting = [BASELINE, {"name": "FA*IR", "method": "fa-ir"}]
    with pytest.raises(InputError, match="There is no group 'nobody' to protect; choose among"):
        manifest_for(bare, tmp_path, systems=protecting, protected="nobody")
    manifest = manifest_for(bare, tmp_path, systems=protecting, protected="female", attributes=[])
    assert manifest.attributes == ("gender",), "the groups say which attribute is meant"
    for own in ({"options": {"protected": "nobody"}}, {"target": "gender=nobody:1"}):
        wrong = {"name": "own", "method": "fa-ir", "settings": own}
        with pytest.raises(FairqrError, match="'nobody'"):
            manifest_for(bare, tmp_path, systems=[BASELINE, wrong])
    with pytest.raises(PromptError, match="v99"):
        manifest_for(bare, tmp_path, systems=systems)
    schema = re.sub(r",? *population: *\{[^}]*\}", "", (bare.folder / "schema.yaml").read_text())
    (bare.folder / "schema.yaml").write_text(schema)
    with pytest.raises(TargetError, match="no population"):
        manifest_for(find_collection(bare.folder), tmp_path)
    with pytest.raises(InputError, match="There is no experiment 'promts'; name a YAML file, or"):
        read_experiment("promts")
