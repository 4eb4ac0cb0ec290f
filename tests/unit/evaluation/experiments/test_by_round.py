"""What rounds are worth by the judgements, pairs of systems, and the track's own measures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.experiments.by_round import agreement, targets_apart
from fairqr.evaluation.experiments.specification import (
    MEASURES,
    OF_THE_TRACK,
    RunFolder,
    SearchRecord,
)
from fairqr.evaluation.results import compare
from tests.unit.evaluation.experiments import small
from tests.unit.evaluation.experiments.test_running import _run

BM25: dict[str, Any] = {"name": "BM25", "method": "baseline"}
PLACE = {"attribute": "gender", "queries": "title"}


def told(name: str, topic: str, target: dict[str, float]) -> SearchRecord:
    return SearchRecord(**PLACE, system=name, seed=0, topic=topic, target=target)


def test_a_stopped_search_keeps_its_last_list_in_later_rounds(tmp_path: Path) -> None:
    """So all rounds are over the same topics; the values are those of the lists, by hand."""
    found = small.measured(tmp_path, queries=["title"], report=["table", "curve", "targets"])
    rounds = found.judged_rounds
    own = rounds[(rounds.system == "ours") & (rounds.measure == "nDCG@5")]
    assert sorted(own["round"].unique()) == [0, 1, 2]
    assert (own.groupby("round").topic.nunique() == 4).all()
    by_round = own.pivot_table(values="value", index="topic", columns="round")
    stopped = by_round.drop(index="t0")
    assert stopped[2].tolist() == stopped[1].tolist()
    record = found.records["gender", "title", "ours"][0]
    relevant = found.qrels[record.topic]
    gains = [1 / math.log2(rank + 1) for rank in range(1, 6)]
    last = record.rounds[-1].ids
    gained = sum(gain for gain, id_ in zip(gains, last, strict=True) if id_ in relevant)
    assert by_round[2][record.topic] == pytest.approx(gained / sum(gains[: len(relevant)]))
    report = found.write_report(tmp_path)[0].read_text()
    assert "## Relevance and fairness by round" in report
    assert "## The loop's own figures beside the judgements" in report
    assert (tmp_path / "figures" / "curve-gender-title.svg").exists()


def test_falls_of_divergence_are_held_against_rises_of_fairness() -> None:
    """A topic whose search never refined says nothing."""
    rows = []
    for topic, divergence, value in [
        ("a", (1.0, 0.5), (0.5, 0.6)),
        ("b", (1.0, 0.2), (0.5, 0.7)),
        ("c", (0.5, 0.6), (0.6, 0.5)),
        ("d", (0.9, 0.6), (0.5, 0.45)),
        ("e", (0.3, 0.3), (0.9, 0.9)),
    ]:
        for number in (0, 1):
            rows.append((topic, number, "AWRF@5", value[number], divergence[number]))
    rounds = pd.DataFrame(rows, columns=["topic", "round", "measure", "value", "divergence"])
    found = agreement(rounds, "AWRF@5")
    assert found is not None
    assert (found["topics"], found["fell"], found["rose"]) == (4, 3, 2)
    expected = pd.Series([0.5, 0.8, -0.1, 0.3]).corr(pd.Series([0.1, 0.2, -0.1, -0.05]))
    assert found["r"] == pytest.approx(expected)
    half = 1.96 / math.sqrt(1)
    assert found["low"] == pytest.approx(math.tanh(math.atanh(expected) - half))
    assert agreement(rounds[rounds["round"] == 0], "AWRF@5") is None


def test_the_estimated_target_stands_beside_the_judged_one() -> None:
    """Without the unknown, of which no search has an estimate."""
    records = [
        told("BM25", "a", {"female": 0.4, "male": 0.6}),
        told("BM25", "b", {"female": 0.2, "male": 0.8}),
        told("BM25", "unjudged", {"female": 1.0, "male": 0.0}),
    ]
    judged = {
        "a": {"female": 0.3, "male": 0.7},
        "b": {"female": 0.1, "male": 0.4, "unknown": 0.5},
    }
    found = targets_apart(records, judged).set_index("group")
    assert found.estimated["female"] == pytest.approx(0.3)
    assert found.judged["female"] == pytest.approx(0.25)
    assert found.apart["female"] == pytest.approx(0.05)
    assert found.apart["all"] == pytest.approx(0.05)
    assert found.topics["all"] == 2
    assert targets_apart([], judged).empty


def test_pairs_of_systems_are_compared_as_with_a_baseline(tmp_path: Path) -> None:
    """In a family of their own."""
    pairs = [["ours, no refinement", "ours"], ["ours, feedback", "ours"]]
    found = small.measured(tmp_path, queries=["title"], pairs=pairs)
    place = ("gender", "title")
    first, last = (found.evaluations[*place, name] for name in ("ours, no refinement", "ours"))
    expected = [row.difference for row in compare(first, [last]).rows]
    own = found.pairs[found.pairs.baseline == "ours, no refinement"]
    assert own.difference.tolist() == pytest.approx(expected)
    assert set(found.pairs.tests) == {6}
    assert "ours − ours, feedback" in found.write_report(tmp_path)[0].read_text()
    with pytest.raises(InputError, match="the pairs name 'nobody'"):
        small.experiment(tmp_path, pairs=[["ours", "nobody"]])


def test_the_tracks_target_brings_the_tracks_measures(
    collection: Collection, tmp_path: Path
) -> None:
    """Beside ours, unless the file names measures."""
    plain = small.manifest_for(collection, tmp_path, measures=list(MEASURES), judge="trec2022")
    assert plain.experiment.measures == OF_THE_TRACK
    other = small.manifest_for(collection, tmp_path, measures=["P@5"], judge="trec2022")
    assert other.experiment.measures == ("P@5",)
    ours = small.manifest_for(collection, tmp_path, measures=list(MEASURES))
    assert ours.experiment.measures == MEASURES
    found = small.measured(
        tmp_path / "run", queries=["title"], measures=list(MEASURES), judge="trec2022"
    )
    report = found.write_report(tmp_path / "run")[0].read_text()
    assert "| AWRF@20(convention=trec2022), nats |" in report
    assert "| AWRF@20(unit=bits) |" in report


async def test_a_model_that_a_system_alone_names_may_be_away(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are done, and a note says why it was not."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    away = {"name": "away", "method": "fair-qr", "model": "openai:nobody"}
    store = RunFolder(tmp_path / "run")
    watcher = await _run(collection.folder, store, systems=[BM25, away])
    (note,) = watcher.notes
    assert note.startswith("'away' was left out: The model openai:nobody cannot be used")
    assert {record.system for record in store.lines.read()} == {"BM25"}
