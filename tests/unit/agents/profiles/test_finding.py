"""What is known of a model, and where it applies."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.profiles.finding import (
    FOR_LARGE_MODELS,
    FOR_SMALL_MODELS,
    SHIPPED,
    UNMEASURED,
    Profiles,
    is_hosted,
    keep_profile,
)
from fairqr.agents.profiles.profile import Change, ModelProfile
from fairqr.base.errors import ConfigError
from fairqr.retrieval.fairness.relevance import EvidenceWeights

MODEL = "openai:tested"


def profile(collection: str = "letters", **other: Any) -> ModelProfile:
    usual: dict[str, Any] = {
        "model": MODEL,
        "prompts": {"topic": "v2", "refine": "v5"},
        "collection": collection,
        "corpora": [collection],
        "weights": EvidenceWeights(topic=0.5, passage=1, group=1),
        "gain": Change(value=4.0, low=1.0, high=7.0),
        "relevance": Change(value=0.02),
        "fairness": Change(value=0.01),
        "share": 0.2,
        "topics": 20,
        "fitted": 20,
        "searches": 40,
        "date": datetime.date(2026, 11, 28),
    }
    return ModelProfile(**usual | other)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "profiles"


def test_a_profile_is_read_as_it_was_kept(folder: Path) -> None:
    path = keep_profile(profile(), folder)
    assert path.parent == folder
    assert Profiles(folder).of_model(MODEL) == [profile()]
    keep_profile(profile(share=0.3), folder)
    assert [it.share for it in Profiles(folder).of_model(MODEL)] == [0.3]


def test_the_collection_of_the_index_counts(folder: Path) -> None:
    keep_profile(profile(), folder)
    keep_profile(profile("diaries", corpora=["diaries", "a hash"], share=0.1), folder)
    profiles = Profiles(folder)
    assert profiles.trust_in(MODEL, profile().prompts, ["letters"]).share == 0.2
    trust = profiles.trust_in(MODEL, profile().prompts, ["renamed", "a hash"])
    assert (trust.share, trust.measured_on) == (0.1, ("diaries",))
    assert trust.weights.passage == 1


def test_another_index_takes_the_lower_weights_and_no_passages(folder: Path) -> None:
    keep_profile(profile(), folder)
    other = EvidenceWeights(topic=1, passage=1, group=0.5)
    keep_profile(profile("diaries", weights=other, share=0.1), folder)
    trust = Profiles(folder).trust_in(MODEL, profile().prompts, ["an index"])
    assert trust.weights == EvidenceWeights(topic=0.5, passage=0, group=0.5)
    assert trust.share == 0.1
    assert set(trust.measured_on) == {"letters", "diaries"}


def test_other_prompts_or_models_were_not_measured(folder: Path) -> None:
    keep_profile(profile(), folder)
    profiles = Profiles(folder)
    assert profiles.trust_in(MODEL, FOR_SMALL_MODELS, ["letters"]) == UNMEASURED
    assert profiles.trust_in("openai:other", profile().prompts, ["letters"]) == UNMEASURED


def test_a_quick_measurement_never_replaces_one_that_ships(folder: Path) -> None:
    shipped = next(it for it in Profiles(folder).of_model("feedback"))
    quick = shipped.model_copy(update={"is_quick": True, "share": 0.9})
    keep_profile(quick, folder)
    assert shipped in Profiles(folder).of_model(shipped.model)
    keep_profile(quick.model_copy(update={"is_quick": False}), folder)
    shares = [it.share for it in Profiles(folder).of_model(shipped.model)]
    assert 0.9 in shares


@pytest.mark.parametrize(
    ("model", "prompts"),
    [
        ("openai:gpt-4o", FOR_LARGE_MODELS),
        ("recorded:mine.json", FOR_LARGE_MODELS),
        ("local:another", FOR_SMALL_MODELS),
        ("local:smollm2-135m", FOR_SMALL_MODELS),
    ],
)
def test_which_prompts_suit_a_model(folder: Path, model: str, prompts: dict[str, str]) -> None:
    assert Profiles(folder).prompts_for(model) == prompts


def test_the_prompts_of_a_measurement_win(folder: Path) -> None:
    keep_profile(profile(prompts=FOR_SMALL_MODELS), folder)
    assert Profiles(folder).prompts_for(MODEL) == FOR_SMALL_MODELS


def test_a_wrong_profile_is_named(folder: Path) -> None:
    folder.mkdir()
    (folder / "mine.yaml").write_text("model: openai:tested\n")
    with pytest.raises(ConfigError, match=r"The profile .*mine\.yaml is wrong"):
        Profiles(folder)


def test_only_servers_of_others_get_queries() -> None:
    assert is_hosted("openai:gpt-4o")
    assert not any(map(is_hosted, ["local:smollm2-135m", "feedback", "recorded:notables"]))


def test_what_ships_was_measured() -> None:
    profiles = Profiles(SHIPPED)
    for model in ("feedback", "local:smollm2-135m", "recorded:notables", "recorded:trec2022"):
        assert profiles.of_model(model)
        for shipped in profiles.of_model(model):
            assert shipped.topics >= 4


def test_a_model_is_asked_with_its_best_prompts(folder: Path) -> None:
    """On collections where both were measured; what one alone was measured on does not compare."""
    small = {"prompts": dict(FOR_SMALL_MODELS)}
    keep_profile(profile("letters", gain=Change(value=4.0)), folder)
    keep_profile(profile("plays", gain=Change(value=90.0)), folder)
    keep_profile(profile("letters", gain=Change(value=5.0), **small), folder)
    assert Profiles(folder).prompts_for(MODEL) == FOR_SMALL_MODELS
    keep_profile(profile("plays", gain=Change(value=1.0), **small), folder)
    assert Profiles(folder).prompts_for(MODEL) == FOR_LARGE_MODELS
