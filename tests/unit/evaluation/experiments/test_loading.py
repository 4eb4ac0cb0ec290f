"""A run read from Python: what was run, and what was measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import fairqr
from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.experiments.store import Store
from tests.unit.evaluation.experiments.small import fill, manifest_for, records_of


def test_the_frames_of_a_run_hold_what_was_measured(collection: Collection, tmp_path: Path) -> None:
    manifest, store = manifest_for(collection, tmp_path), Store(tmp_path / "run")
    fill(store, manifest, records_of(manifest, collection))
    run = fairqr.load_experiment(tmp_path / "run")
    assert (run.kind, run.spec) == ("search", manifest.experiment)
    scores = run.frames["scores"]
    own = scores[scores.measure == "nDCG@5"].set_index(["system", "topic"])
    for (_, _, system), evaluation in run.evaluations.items():
        assert own.value[system].to_dict() == evaluation.results["nDCG@5"].values
    assert len(run.frames["searches"]) == len(store.lines.read())
    assert list(run.plots) == [
        f"{kind}-gender-title" for kind in ("trade_off", "exposure", "divergence", "drift")
    ]
    plot = run.plots["trade_off-gender-title"]
    assert plot._repr_svg_().startswith("<svg")
    assert plot.svg.endswith(plot._repr_svg_())


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("unfinished", [True, False])
def test_frames_are_joined_though_one_attribute_has_little(
    collection: Collection, tmp_path: Path, unfinished: bool
) -> None:
    manifest = manifest_for(collection, tmp_path, attributes=["gender", "place"])
    records = list(records_of(manifest, collection))
    if unfinished:
        records = [it for it in records if it.attribute == "gender" or it.system == "BM25"]
    else:
        nothing = {"rounds": [], "ids": [], "error": "Nothing matches."}
        records = [
            it if it.attribute == "gender" else it.model_copy(update=nothing) for it in records
        ]
    fill(Store(tmp_path / "run"), manifest, records)
    frames = fairqr.load_experiment(tmp_path / "run").frames
    assert set(frames["searches"].attribute) == {"gender", "place"}
    assert set(frames["drift"].attribute) == {"gender"}


def test_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no experiment"):
        fairqr.load_experiment(tmp_path)


def test_without_pandas_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match=r"pip install 'fairqr\[evaluation\]'"):
        fairqr.load_experiment(tmp_path)
