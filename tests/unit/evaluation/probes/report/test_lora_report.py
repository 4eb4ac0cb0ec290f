"""The report of a tuning: before and after are of the same pairs, and its words are careful."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairqr.base.errors import InputError
from fairqr.evaluation.probes.collection import ProbeCollection
from fairqr.evaluation.probes.pairs import ProbePair, group_pairs, relevance_pairs
from fairqr.evaluation.probes.records import PairRecord
from fairqr.evaluation.probes.report import lora, lora_training, writing
from fairqr.evaluation.probes.report.writing import write_probe_report
from fairqr.evaluation.probes.specification import LoraExperiment
from fairqr.evaluation.probes.store import CollectionEntry
from fairqr.evaluation.probes.tuning_measures import measure_lora
from fairqr.evaluation.probes.tuning_records import (
    LoraManifest,
    LoraStore,
    SplitEntry,
    StepRecord,
    When,
)
from tests.unit.evaluation.probes.report.made_probes import collection
from tests.unit.evaluation.probes.report.reading import (
    HOSTILE,
    check_page,
    check_plain,
    row_of,
    section,
    table,
)

Reply = Callable[[int], tuple[str, str]]
ODDS = {"protected": 1.0, "unprotected": -1.0}


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second, and most of what is proved here stands in tables."""
    for module in (lora, lora_training, writing):
        monkeypatch.setattr(module, "can_draw", lambda: False)


def report(folder: Path) -> str:
    """Write the report without plots."""
    with pytest.raises(InputError, match="without plots"):
        write_probe_report(folder)
    return (folder / "report.md").read_text()


def leans(number: int) -> tuple[str, str]:
    """Prefer the protected item in three of four pairs, both times."""
    return ("protected",) * 2 if number % 4 else ("unprotected",) * 2


def even(number: int) -> tuple[str, str]:
    """Prefer either item as often."""
    return ("protected",) * 2 if number % 2 else ("unprotected",) * 2


def first(number: int) -> tuple[str, str]:
    """Prefer what stands first, but for one pair of eight."""
    if number % 8:
        return ("protected", "unprotected")
    return ("refused", "refused")


def begin(
    folder: Path,
    probe: ProbeCollection,
    before: Reply | None,
    after: Reply | None,
    *,
    steps: int = 20,
    relevance: int = 4,
    notes: tuple[str, ...] = (),
    **changes: Any,
) -> LoraStore:
    """Write a tuning with half of the queries held out."""
    values = {
        "kind": "lora",
        "title": "Tuning",
        "collection": "notables",
        "sources": [{"attribute": "gender", "protected": "female"}],
        "model": "causal:small",
        "held_out_pairs": 4,
        "relevance_pairs": relevance,
        **changes,
    }
    held_out = probe.queries[::2]
    pairs = [
        (query.id, pair)
        for query in held_out
        for pair in (
            *group_pairs(query, "relevant", 4, 0),
            *group_pairs(query, "irrelevant", 4, 0),
            *relevance_pairs(query, relevance, 0),
        )
    ]
    kinds = [pair.kind for _, pair in pairs]
    store = LoraStore(folder)
    store.begin(
        LoraManifest(
            versions={"fairqr": "0.0"},
            started="2025-01-01T00:00:00Z",
            experiment=LoraExperiment.model_validate(values),
            collections=(CollectionEntry.of(probe),),
            splits=(
                SplitEntry(
                    collection=probe.manifest.name,
                    train=tuple(query.id for query in probe.queries[1::2]),
                    held_out=tuple(query.id for query in held_out),
                    training_pairs={"relevant": 32, "irrelevant": 32},
                    held_out_pairs={kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
                    left_out=3,
                ),
            ),
            base="small",
            base_sha256="b" * 64,
            prompt="pairwise=v2",
            prompt_sha256="c" * 64,
            training="d" * 64,
            steps=steps,
            notes=notes,
        )
    )
    sides: tuple[tuple[When, Reply | None], ...] = (("before", before), ("after", after))
    for when, reply in sides:
        lines = store.pairs(when)
        with lines.writing():
            for number, (query, pair) in enumerate(pairs if reply else ()):
                assert reply is not None
                lines.add(record(probe, query, pair, reply(number)))
    with store.losses.writing():
        for step in range(1, (steps if after else 0) + 1):
            store.losses.add(
                StepRecord(
                    step=step,
                    loss=1 / step,
                    learning_rate=0.003 * (1 - step / (steps + 1)),
                    norm=1.0,
                    examples=4,
                    tokens=400,
                )
            )
    return store


def record(
    probe: ProbeCollection, query: str, pair: ProbePair, said: tuple[str, str]
) -> PairRecord:
    """Write down what was said of a pair."""
    one, other = (ODDS.get(reply) for reply in said)
    return PairRecord(
        collection=probe.manifest.name,
        model="causal:small",
        query=query,
        kind=pair.kind,
        protected=pair.protected.id,
        unprotected=pair.unprotected.id,
        protected_first=said[0],
        unprotected_first=said[1],
        log_odds=(one, None if other is None else -other),
    )


def test_before_and_after_stand_beside_each_other(tmp_path: Path, no_plots: None) -> None:
    store = begin(tmp_path, collection(queries=16), leans, even)
    text = report(tmp_path)
    rows = table(text, "which group wins held-out pairs")
    before = row_of(rows, "relevant pairs", "before")
    after = row_of(rows, "relevant pairs", "after")
    assert before["protected %"].endswith("24 of 32")
    assert before["ratio"].startswith("3.000")
    assert before["verdict"] == "favours protected"
    assert after["protected %"].endswith("16 of 32")
    assert after["ratio"].startswith("1.000")
    assert after["verdict"] == "no lean found"
    changed = row_of(table(text, "how far tuning changed"), "both kinds together")
    assert changed["held-out pairs"] == "64 of 8 queries"
    assert changed["log-odds before"].startswith("+0.5000")
    assert changed["log-odds after"].startswith("0.0000")
    short = section(text, "In short")
    for sentence in measure_lora(store).sentences:
        assert sentence in short
    assert "it moved toward 1" in short
    values = list(csv.DictReader((tmp_path / "measures.csv").read_text().splitlines()))
    (own,) = [
        value
        for value in values
        if (value["pairs"], value["when"], value["measure"]) == ("relevant", "after", "protected")
    ]
    assert (own["count"], own["of"], own["value"]) == ("16", "32", "0.5")


def test_fairness_that_is_bought_by_randomness_is_seen(tmp_path: Path, no_plots: None) -> None:
    begin(tmp_path, collection(queries=16), leans, first)
    text = report(tmp_path)
    (row,) = [row for row in table(text, "one winner in both orders") if "both kinds" in row[1]]
    assert row[2].startswith("100.0%")
    assert row[3].startswith("0.0%")
    assert row[4].startswith("-1.0000")
    relevance = table(text, "whose relevant item wins")
    assert relevance[1][2].startswith("75.0%")
    assert relevance[1][3].startswith("0.0%")
    failed = row_of(
        table(text, "prefer neither item"), "notables, gender", "irrelevant pairs", "after"
    )
    assert failed["failed"] == "8 12.5%"
    assert failed["failures by kind"] == "8 × refused"
    assert "position decides" in text


def test_the_training_is_told(tmp_path: Path, no_plots: None) -> None:
    begin(tmp_path, collection(queries=16), leans, even)
    told = section(report(tmp_path), "Training")
    assert "20 steps of 20 were done, on 80 examples with 8,000 tokens" in told
    losses = ", ".join(f"{(1 / a + 1 / (a + 1)) / 2:.4f}" for a in range(1, 20, 2))
    assert f"in order: {losses}." in told
    (row,) = table((tmp_path / "report.md").read_text(), "Queries and pairs of training")[1:]
    assert row == [
        "notables, gender",
        "8",
        "8",
        "64 32 × relevant; 32 × irrelevant",
        "96 32 × relevant; 32 × irrelevant; 32 × relevance",
        "3",
    ]


@pytest.mark.parametrize("before", [None, leans])
def test_a_tuning_that_is_not_at_its_end_says_so(
    before: Reply | None, tmp_path: Path, no_plots: None
) -> None:
    begin(tmp_path, collection(), before, None)
    text = report(tmp_path)
    assert "held-out pairs still to be done" in text
    assert "No step of the training was done yet" in text
    assert "No pair was asked about both before and after" in section(text, "In short")
    check_page(tmp_path)


def test_without_relevance_pairs_it_is_said_that_nothing_is_known(
    tmp_path: Path, no_plots: None
) -> None:
    begin(tmp_path, collection(), leans, even, relevance=0)
    assert "not known whether fairness was bought by relevance" in report(tmp_path)


def test_the_figures_are_drawn_and_hostile_names_are_text(tmp_path: Path) -> None:
    probe = collection(name=HOSTILE, words=(HOSTILE, f"{HOSTILE}!"))
    begin(
        tmp_path,
        probe,
        leans,
        first,
        notes=(HOSTILE,),
        about=HOSTILE,
        title=HOSTILE,
        model=f"causal:{HOSTILE}",
    )
    written = write_probe_report(tmp_path)
    assert len(written) == 5
    assert check_plain(tmp_path) == 2
    assert "alert(1)" in check_page(tmp_path)


def test_the_same_results_give_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "other"):
        begin(tmp_path / name, collection(queries=4), leans, even)
        write_probe_report(tmp_path / name)
    names = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(names) == 9
    for path in names:
        other = tmp_path / "other" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == other.read_bytes()
