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
FA_IR: dict[str, Any] = {"name": "FA*IR", "method": "fa-ir"}


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_experiments_fit_notables(name: str) -> None:
    """Every shipped experiment can be run on notables.

    Every search has a context, a prompt and an attribute that exist. What the command sets
    overrides the file.
    """
    file = read_experiment(name)
    small = file.spec({"title": "Mine"}, small=True)
    full = file.spec()
    assert (small.title, type(small)) == ("Mine", type(full))
    assert small != full
    if full.kind == "search":
        collection = find_collection(full.collection)
        manifest = manifest_of(full, collection, PromptLibrary())
        assert manifest.attributes == ("gender", "continent")
        assert len(manifest.topics) == 57
        cells = cells_of(manifest, collection, collection.corpus_name)
        systems = manifest.experiment.systems
        runs = sum(len(manifest.experiment.seeds_of(system)) for system in systems)
        assert len(cells) == 2 * len(manifest.query_forms) * runs


@pytest.mark.parametrize(
    ("is_pulled", "retriever", "expected"),
    [
        pytest.param(False, "auto", ["bm25", "bm25", "dense", "auto"], id="without vectors"),
        pytest.param(True, "auto", ["hybrid:minilm", "bm25", "dense", "auto"], id="with vectors"),
        pytest.param(True, "hybrid", ["hybrid", "hybrid", "dense", "hybrid"], id="named"),
    ],
)
def test_what_auto_stands_for_is_written_down(
    collection: Collection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_pulled: bool,
    retriever: str,
    expected: list[str],
) -> None:
    """The paper's loop searches by words; a corpus that is named may have a ranking of its own."""
    systems = [
        BASELINE,
        {"name": "paper", "method": "fair-qr"},
        {"name": "vectors", "method": "fair-qr", "retriever": "dense"},
        {"name": "outside", "corpus": "notables"},
    ]
    monkeypatch.setattr("fairqr.retrieval.encoders.opening.is_pulled", lambda name: is_pulled)

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
    plain, ours, named, learnt = experiment(tmp_path, systems=systems, protected="female").systems

    assert plain.settings == {}
    assert ours.context(k=5).options == {"protected": "female"}
    assert named.context(k=5).options == {"protected": "male"}
    assert learnt.train is not None
    assert learnt.train.options == {"protected": "female"}
    with pytest.raises(InputError, match="no system protects a group"):
        experiment(tmp_path, systems=[BASELINE], protected="female")


def test_what_varies_is_one_system_for_each_combination(tmp_path: Path) -> None:
    vary = {"max_iterations": [1, 2], "patience": [1, 2]}
    varied = {"name": "both {max_iterations} {patience}", "vary": vary, "model": "feedback"}
    odd = {"name": "{patience.__class__}", "vary": {"patience": [1]}}
    spec = experiment(tmp_path, systems=[BASELINE, varied, odd])
    systems = {system.name: (system.settings, system.model) for system in spec.systems}

    assert systems["both 2 1"] == ({"max_iterations": 2, "patience": 1}, "feedback")
    assert systems["{patience.__class__}"] == ({"patience": 1}, spec.model)
    assert len(systems) == 1 + 4 + 1


def _other(**changes: Any) -> dict[str, Any]:
    return {"systems": [BASELINE, {"name": "other", **changes}]}


def assert_refused(path: Path, sentence: str, *, small: bool = False) -> None:
    """Assert that a file of an experiment is refused in one sentence that names it."""
    with pytest.raises(InputError) as caught:
        read_experiment(path).spec(small=small)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param(
            {"queries": []}, "the list of queries is empty; name at least one.", id="no queries"
        ),
        pytest.param(
            {"attributes": ["gender"] * 2},
            "one of the attributes is named twice; name each once.",
            id="an attribute twice",
        ),
        pytest.param(
            {"baseline": "none"},
            "the baseline 'none' is not one of the systems.",
            id="no baseline",
        ),
        pytest.param(
            {"judge": "relevance:2"},
            "the shares of the target must sum to 1, not 2.",
            id="a wrong target",
        ),
        pytest.param(
            {"systems": [{"name": "\u202eab\n"}]}, "is not one plain name", id="a strange name"
        ),
        pytest.param(
            _other(vary={"patience": [1, 2]}),
            "'other' is not one plain name of one system.",
            id="one name for two",
        ),
        pytest.param(
            _other(method="dlf"),
            "'other' needs weights: give it 'train: {folds: 5}'.",
            id="no weights",
        ),
        pytest.param(
            _other(vary={"seed": [1]}),
            "'seed' is set for the whole experiment, not in settings.",
            id="a seed of a system",
        ),
    ],
)
def test_each_error_has_its_sentence(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = write_experiment(tmp_path / "e.yaml", **changes)

    assert_refused(path, sentence)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("kind: poem")

    assert_refused(path, "has no kind; write 'kind: ' and one of search, fair_rag, ")


def test_an_experiment_may_have_no_small_form(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text("title: Mine")

    assert_refused(path, "has no small form; leave out --small", small=True)


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(InputError, match="There is no experiment 'promts'; name a YAML file, or"):
        read_experiment("promts")


@pytest.fixture
def bare(tmp_path: Path) -> Collection:
    """A collection whose topics have no keywords."""
    return write_collection(tmp_path / "bare", keywords=False)


def test_topics_without_keywords_leave_their_form_out(bare: Collection, tmp_path: Path) -> None:
    manifest = manifest_for(bare, tmp_path, queries=["title", "title+10"])

    assert manifest.query_forms == ("title",)


def test_a_protected_group_says_which_attribute_is_meant(bare: Collection, tmp_path: Path) -> None:
    manifest = manifest_for(
        bare, tmp_path, systems=[BASELINE, FA_IR], protected="female", attributes=[]
    )

    assert manifest.attributes == ("gender",)


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        pytest.param(
            {"attributes": ["colour"]}, UnknownAttributeError, "'colour'", id="an attribute"
        ),
        pytest.param(
            {"systems": [BASELINE, FA_IR], "protected": "nobody"},
            InputError,
            "There is no group 'nobody' to protect; choose among",
            id="a protected group",
        ),
        pytest.param(
            _other(method="fa-ir", settings={"options": {"protected": "nobody"}}),
            FairqrError,
            "'nobody'",
            id="a protected group of one system",
        ),
        pytest.param(
            _other(method="fa-ir", settings={"target": "gender=nobody:1"}),
            FairqrError,
            "'nobody'",
            id="a group of a target",
        ),
        pytest.param(
            _other(settings={"prompts": {"refine": "v99"}}), PromptError, "v99", id="a prompt"
        ),
    ],
)
def test_what_does_not_fit_the_collection_is_refused_first(
    bare: Collection,
    tmp_path: Path,
    changes: dict[str, Any],
    error: type[FairqrError],
    sentence: str,
) -> None:
    """No search is made before."""
    with pytest.raises(error, match=sentence):
        manifest_for(bare, tmp_path, **changes)


def test_a_target_without_a_population_is_refused(bare: Collection, tmp_path: Path) -> None:
    file = bare.folder / "schema.yaml"
    file.write_text(re.sub(r",? *population: *\{[^}]*\}", "", file.read_text()))

    with pytest.raises(TargetError, match="no population"):
        manifest_for(find_collection(bare.folder), tmp_path)
