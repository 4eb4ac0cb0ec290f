"""How far exposure follows the target over all groups that nobody lists: by hand, and by force."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import pickle
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import fairqr
from fairqr.evaluation.audit import dimensions, finishing
from fairqr.evaluation.audit.bundle import AuditFolder, Observation
from fairqr.evaluation.audit.comparing import compare, write_comparison
from fairqr.evaluation.audit.concentration import (
    CURVE_AT,
    Concentration,
    chances_of,
    draw_by_lot,
    gini_change,
    gini_index,
    lorenz_curve,
    served_worst_first,
)
from fairqr.evaluation.audit.exposures import Answer, Choices
from fairqr.evaluation.audit.gathering import AllGroups
from fairqr.evaluation.audit.measuring import AuditFigures
from fairqr.evaluation.estimates import Estimate
from fairqr.evaluation.experiments.verifying import verify
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.fairness.exposure import LOG2, FloatArray
from fairqr.retrieval.fairness.table import coded_rows, named_array
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.sources.schema import Schema
from tests.unit.evaluation.audit.examples import measured, queries_of, sealed, spec_of
from tests.unit.retrieval.embedded import built

OPEN = Schema.model_validate({"attributes": {"seller": {"field": "seller", "groups": "any"}}})

shares = st.lists(st.integers(0, 20), min_size=1, max_size=8)
pairs_of_shares = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1).filter(
    lambda pairs: any(exposure for exposure, _ in pairs)
)


def arrays_of(pairs: Sequence[tuple[float, float]]) -> tuple[FloatArray, FloatArray]:
    exposures, target = np.array(pairs, float).T
    return exposures, target


def by_pairs(exposures: FloatArray, target: FloatArray) -> float:
    """Return the index as a sum over all pairs of groups, without any order."""
    exposures = exposures / exposures.sum()
    target = target / target.sum()
    pairs = itertools.product(zip(exposures, target, strict=True), repeat=2)
    return sum(abs(one * other_due - other * due) for (one, due), (other, other_due) in pairs) / 2


def test_three_groups_by_hand() -> None:
    """b should get half and gets a tenth, c the same and gets six tenths of what a gives up."""
    exposures = np.array([0.3, 0.1, 0.6])
    target = np.array([0.3, 0.5, 0.2])
    assert served_worst_first(exposures, target).tolist() == [1, 0, 2]
    assert lorenz_curve(exposures, target) == pytest.approx(
        np.array([[0, 0], [0.5, 0.1], [0.8, 0.4], [1, 1]])
    )
    area = 0.5 * 0.1 / 2 + 0.3 * (0.1 + 0.4) / 2 + 0.2 * (0.4 + 1) / 2
    assert gini_index(exposures, target) == pytest.approx(1 - 2 * area) == pytest.approx(0.52)


@given(pairs_of_shares)
def test_the_index_is_half_the_sum_over_pairs(
    pairs: list[tuple[float, float]],
) -> None:
    exposures, target = arrays_of(pairs)
    found = gini_index(exposures, target)
    assert 0 <= found <= 1
    assert found == pytest.approx(by_pairs(exposures, target), abs=1e-9)


@given(pairs_of_shares)
def test_the_curve_rises_ever_steeper_below_the_diagonal(pairs: list[tuple[float, float]]) -> None:
    x, y = lorenz_curve(*arrays_of(pairs)).T
    assert (x[0], y[0], x[-1], y[-1]) == pytest.approx((0, 0, 1, 1))
    assert (y <= x + 1e-12).all()
    slopes = np.diff(y) / np.diff(x)
    assert (np.diff(slopes) >= -1e-6 * (1 + slopes[1:])).all()


@given(st.lists(st.integers(0, 20), min_size=1).filter(any), st.integers(1, 9))
def test_it_is_0_where_exposure_follows_the_target(target: list[int], factor: int) -> None:
    due = np.array(target, float)
    assert gini_index(factor * due, due) == pytest.approx(0, abs=1e-12)


@given(pairs_of_shares, st.integers(2, 4), st.permutations(range(8)))
def test_groups_with_one_ratio_may_be_one(
    pairs: list[tuple[float, float]], parts: int, order: list[int]
) -> None:
    """In any order: a group and its parts have the same curve."""
    split = [(exposure / parts, due / parts) for exposure, due in pairs for _ in range(parts)]
    mixed = [split[place] for place in sorted(range(len(split)), key=lambda it: order[it % 8])]
    assert gini_index(*arrays_of(mixed)) == pytest.approx(gini_index(*arrays_of(pairs)), abs=1e-9)


def test_a_group_that_should_get_nothing_comes_last() -> None:
    exposures = np.array([0.4, 0.6, 0.0])
    target = np.array([0.0, 0.5, 0.5])
    assert served_worst_first(exposures, target).tolist() == [2, 1, 0]
    assert gini_index(exposures, target) == pytest.approx(by_pairs(exposures, target))
    assert gini_index(np.eye(3)[0], target) == 1
    assert math.isnan(gini_index(np.zeros(3), target))


def test_lots_share_the_first_rank_as_the_target_says() -> None:
    """The target of two groups is half each; the first has three documents, one of them likely."""
    members = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1], [0, 0]])
    answer = Answer(members, 5, np.array([0.8, 0.1, 0.1, 0.2, 1.0]))
    chances = chances_of(answer, np.array([0.5, 0.5]))
    assert chances == pytest.approx([0.4, 0.05, 0.05, 0.5, 0])
    drawn = draw_by_lot(chances, 4, np.random.default_rng(0), draws=4_000)
    assert sorted(drawn[0].tolist()) == [0, 1, 2, 3], "what has no chance is not drawn"
    counts = np.bincount(drawn[:, 0], minlength=5)[:4]
    assert stats.chisquare(counts, 4_000 * chances[:4]).pvalue > 0.001
    after = drawn[drawn[:, 0] == 3, 1]
    counts = np.bincount(after, minlength=3)
    assert stats.chisquare(counts, len(after) * chances[:3] / 0.5).pvalue > 0.001


Market = list[list[tuple[list[str], float]]]
"""By query its documents, best first: the sellers of each, and its relevance."""


def market(queries: int, sellers: int, favour: float = 0.0, seed: int = 0) -> Market:
    """Return answers of an engine that ranks by chance, and puts one seller first."""
    random = np.random.default_rng(seed)
    sizes = 1 / np.arange(1, sellers + 1)
    found = []
    for _ in range(queries):
        of = random.choice(sellers, 60, p=sizes / sizes.sum())
        relevance = random.random(60).round(3)
        keys = np.log(relevance + 1e-9) + random.gumbel(size=60) + favour * (of == 1)
        order = np.argsort(-keys)
        found.append([([f"shop {of[row]}"], float(relevance[row])) for row in order])
    return found


def observed(answers: Market) -> Iterator[Observation]:
    for number, answer in enumerate(answers, start=1):
        names = named_array([{name: 1 / len(of) for name in of} for of, _ in answer])
        yield Observation(
            query=f"q{number}",
            status="ok",
            ids=tuple(f"d{place}" for place in range(len(answer))),
            relevance=tuple(relevance for _, relevance in answer),
            groups={"seller": coded_rows(names)},
        )


def audit_of(answers: Market, **options: Any) -> AuditFigures:
    """Return all figures of an audit of these answers; the n-th query has a weight of n."""
    queries = queries_of(len(answers))
    return measured(queries, observed(answers), schema=OPEN, k=5, rerank=0, **options)


def gathered_of(answers: Market) -> AllGroups:
    """Gather all groups alone, where all queries weigh alike."""
    dimension = Dimension.named(OPEN, "seller")
    gathered = AllGroups(dimension, Choices(k=5), seed=0)
    for observation in observed(answers):
        gathered.add(1.0, gathered.groups_in(observation))
    return gathered


def concentration_of(answers: Market) -> Concentration:
    found = gathered_of(answers).totals.concentration()
    assert found is not None
    return found


def test_an_even_target_counts_all_groups_that_a_query_found() -> None:
    """Of 60 sellers the 20 largest have figures; those in other have their shares all the same."""
    answers = market(12, 60)
    groups = audit_of(answers, target="uniform:1").groups
    named = {figures.group for figures in groups} - {"other"}
    expected: dict[str, float] = defaultdict(float)
    whole = sum(range(1, len(answers) + 1))
    for weight, answer in enumerate(answers, start=1):
        found = {seller for sellers, _ in answer for seller in sellers}
        for seller in found:
            expected[seller if seller in named else "other"] += weight / whole / len(found)
    assert len(named) == 20
    for figures in groups:
        assert figures.target.value == pytest.approx(expected[figures.group])


@pytest.mark.promise("audit")
@pytest.mark.parametrize("target", ["relevance:1", "uniform:1", "relevance:0.5,uniform:0.5"])
def test_sums_of_all_groups_are_those_by_document(target: str) -> None:
    """Audits measure all groups of an attribute, although nobody lists them."""
    answers = market(12, 40)
    answers[3][0] = (["shop 1", "shop 2"], 0.5)
    answers[4][:3] = [([], 0.9)] * 3
    (found,) = audit_of(answers, target=target).concentrations
    weight_of = {"relevance": target.count("relevance"), "uniform": target.count("uniform")}
    exposures: dict[str, float] = {}
    targets: dict[str, float] = {}
    for weight, answer in enumerate(answers, start=1):
        given: dict[str, float] = {}
        due: dict[str, float] = {}
        for rank, (sellers, relevance) in enumerate(answer):
            for seller in sellers:
                attention = LOG2.weights(5)[rank] / len(sellers) if rank < 5 else 0.0
                given[seller] = given.get(seller, 0.0) + attention
                due[seller] = due.get(seller, 0.0) + relevance / len(sellers)
        for seller in given:
            share = weight_of["relevance"] * due[seller] / sum(due.values())
            share += weight_of["uniform"] / len(given)
            targets[seller] = targets.get(seller, 0.0) + weight * share
            share = given[seller] / sum(given.values())
            exposures[seller] = exposures.get(seller, 0.0) + weight * share
    assert set(found.groups) == set(exposures)
    for values, expected in ((found.exposure, exposures), (found.target, targets)):
        total = sum(expected.values())
        assert values == pytest.approx([expected[it] / total for it in found.groups])
    assert found.gini.value == pytest.approx(by_pairs(found.exposure, found.target))
    assert found.unseen == sum(not it for it in exposures.values()) == found.unseen_with_target
    assert list(found.gap_quantiles.values()) == sorted(found.gap_quantiles.values())
    assert found.gap_quantiles[1] == pytest.approx(max(found.target - found.exposure))


def test_the_interval_is_that_of_leaving_out_each_query() -> None:
    """By brute force, on the logit scale."""
    answers = market(20, 15)
    found = concentration_of(answers).gini
    logits = []
    for left in range(20):
        rest = concentration_of(answers[:left] + answers[left + 1 :]).gini.value
        logits.append(math.log(rest / (1 - rest)))
    whole = math.log(found.value / (1 - found.value))
    changes = np.array(logits) - whole
    freedom = min(19, 3 * (changes**2).sum() ** 2 / (changes**4).sum() - 1)
    half = stats.t.ppf(0.975, freedom) * math.sqrt((changes**2).sum())
    for end, logit in ((found.low, whole - half), (found.high, whole + half)):
        assert end == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-7)


@pytest.mark.promise("audit")
def test_intervals_hold_what_other_queries_show() -> None:
    """The interval of the Gini index over all groups holds what other queries show, and lists drawn
    by lot stand beside it.

    Of audits of as many queries, and lots are what an engine without favour is like.
    """
    every = [concentration_of(market(40, 40, seed=seed)) for seed in range(1, 41)]
    mean = np.mean([it.gini.value for it in every])
    held = [it.gini.low <= mean <= it.gini.high for it in every]
    assert sum(held) >= 36
    by_lot = [it.gini_by_lot for it in every]
    assert np.mean(by_lot) == pytest.approx(mean, abs=0.02)
    assert mean > 0.1, "chance alone makes it more than 0"


def test_a_favoured_seller_shows() -> None:
    fair = concentration_of(market(80, 40))
    unfair = concentration_of(market(80, 40, favour=4.0))
    assert fair.gini.high < unfair.gini.low
    assert fair.gini.low < fair.gini_by_lot < fair.gini.high
    assert unfair.gini_by_lot == pytest.approx(fair.gini_by_lot, abs=0.05)
    assert unfair.groups[-1] == "shop 1"


def change_of(before: Market, after: Market) -> Estimate:
    return gini_change(gathered_of(before).totals, gathered_of(after).totals)


def test_a_change_has_the_interval_of_leaving_out_each_query() -> None:
    """By brute force."""
    before = market(12, 15)
    after = market(12, 15, favour=2.0)
    found = change_of(before, after)

    def difference(queries: Sequence[int]) -> float:
        now, then = (
            concentration_of([answers[query] for query in queries]).gini.value
            for answers in (after, before)
        )
        return now - then

    whole = difference(range(12))
    rest = [difference([it for it in range(12) if it != left]) for left in range(12)]
    changes = np.array(rest) - whole
    freedom = min(11, 3 * (changes**2).sum() ** 2 / (changes**4).sum() - 1)
    half = stats.t.ppf(0.975, freedom) * math.sqrt((changes**2).sum())
    assert found.value == pytest.approx(whole)
    assert (found.low, found.high) == pytest.approx((whole - half, whole + half), abs=1e-7)


@pytest.mark.parametrize("favour", [0.0, 1.5])
def test_intervals_of_a_change_hold_what_other_queries_show(favour: float) -> None:
    """That is 0 where only chance ranks the later documents otherwise, by the same rule."""
    found = []
    for seed in range(1, 41):
        later = seed if favour else seed + 100
        found.append(change_of(market(30, 40, seed=seed), market(30, 40, favour, later)))
    mean = np.mean([it.value for it in found]) if favour else 0.0
    assert sum(it.low <= mean <= it.high for it in found) >= 36


def test_order_and_names_change_nothing() -> None:
    answers = market(30, 25)
    found = concentration_of(answers)
    turned = concentration_of(answers[::-1])
    assert turned.gini == found.gini
    renamed = [[([it.replace("shop", "store") for it in of], r) for of, r in q] for q in answers]
    again = concentration_of(renamed)
    assert again.gini == found.gini
    assert again.gini_by_lot == found.gini_by_lot


def test_a_seller_may_be_called_other() -> None:
    """It is one of the groups found; without it, what is no group's own is none."""
    answers = market(10, 8)
    assert "other" not in concentration_of(answers).groups
    named = [[(["other"] if of == ["shop 1"] else of, r) for of, r in q] for q in answers]
    found = concentration_of(named)
    assert found.gini == concentration_of(answers).gini
    assert "other" in found.groups


def test_there_is_no_index_without_open_attributes_or_targets() -> None:
    assert not measured(queries_of(3), ()).concentrations
    unknown = [[(of, 0.0) for of, _ in answer] for answer in market(8, 5)]
    assert not audit_of(unknown).concentrations
    few = concentration_of(market(3, 5)).gini
    assert 0 < few.value < 1
    assert math.isnan(few.low)


def test_a_query_that_shows_or_finds_no_label_is_left_out() -> None:
    answers = market(10, 8)
    without = concentration_of(answers)
    answers += [[([], 0.5)] * 20, [([], 0.5)] * 5 + [(["shop 9"], 0.5)]]
    found = concentration_of(answers)
    assert found.gini == without.gini
    assert found.gini.queries == 10


def test_only_the_shares_of_groups_are_kept_of_a_query() -> None:
    """And not its pool: documents that share their groups add nothing."""
    sizes = []
    for times in (1, 20):
        answers = [[held for held in answer for _ in range(times)] for answer in market(5, 2_000)]
        sizes.append(len(pickle.dumps(gathered_of(answers))))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.05)


SELLERS = 12
WORDS = tuple(f"item{number:02}" for number in range(10))


def shelf(*, favour: int) -> Iterable[Document]:
    """Yield relevant documents of each word; the favoured seller's repeat it more often."""
    random = np.random.default_rng(3)
    for word in WORDS:
        for number in range(40):
            seller = int(random.integers(SELLERS))
            times = int(random.integers(1, 6)) + (favour if seller == 0 else 0)
            text = " ".join([word] * times + ["filler"] * (20 - times))
            yield Document(f"{word}-{number:02}", "", text, {"seller": f"shop {seller}"})


QRELS = {word: {f"{word}-{number:02}": 1 for number in range(40)} for word in WORDS}
ROWS = [{"query": word, "id": word} for word in WORDS]
OPTIONS: dict[str, Any] = {"attribute": "seller", "k": 5, "depth": 40, "rerank": 0, "qrels": QRELS}


@pytest.fixture(scope="module")
def audits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, fairqr.Audit]:
    """Audits of an engine that favours a seller, and of one that does not."""
    found = {}
    for name, favour in (("fair", 0), ("favouring", 8)):
        folder = tmp_path_factory.mktemp(name)
        engine = built(folder / "index", shelf(favour=favour), OPEN)
        found[name] = asyncio.run(fairqr.audit(engine, ROWS, folder=folder / "audit", **OPTIONS))
    return found


@pytest.mark.promise("audit")
def test_an_audit_finds_a_favoured_seller(
    audits: dict[str, fairqr.Audit],
) -> None:
    """A seller that an engine favours shows beside lists drawn by lot."""
    (fair,) = audits["fair"].figures.concentrations
    (favouring,) = audits["favouring"].figures.concentrations
    assert len(fair.groups) == len(favouring.groups) == SELLERS
    assert fair.gini.high < favouring.gini.low
    assert fair.gini.low < fair.gini_by_lot < fair.gini.high
    assert favouring.gini_by_lot == pytest.approx(fair.gini_by_lot, abs=0.1)
    assert favouring.groups[-1] == "shop 0"


def test_an_audit_says_what_all_groups_get(audits: dict[str, fairqr.Audit]) -> None:
    audit = audits["favouring"]
    (found,) = audit.figures.concentrations
    gini = found.gini
    (said,) = [sentence for sentence in audit.findings if "Gini" in sentence]
    assert re.match(
        rf"seller: {found.unseen} groups? of {SELLERS} gets? no exposure at all\.", said
    )
    gini = found.gini
    assert f"The Gini index is {gini.value:.2f} ({gini.low:.2f} to {gini.high:.2f})" in said
    assert f"Lists drawn by lot would have {found.gini_by_lot:.2f}." in said
    report = (audit.folder / "report.md").read_text()
    assert "(figures/lorenz.svg)" in report
    assert f"the gaps of all {SELLERS} groups" in report
    assert f"| 100% | +{100 * found.gap_quantiles[1]:.3f} |" in report
    (held,) = json.loads((audit.folder / "audit.json").read_text())["concentration"]
    assert held["gini"]["value"] == pytest.approx(gini.value)
    assert held["unseen"] == found.unseen
    for name, curve in (
        ("lorenz", found.exposure_of_worst(CURVE_AT)),
        ("lorenz_by_lot", found.exposure_of_worst_by_lot(CURVE_AT)),
    ):
        assert np.array(held[name]) == pytest.approx(np.array([*zip(CURVE_AT, curve, strict=True)]))
    table = audit.frames["all_groups"]
    assert table.group.tolist() == [*found.groups]
    assert table.exposure.sum() == pytest.approx(1)


def test_anybody_can_compute_all_groups_again(
    audits: dict[str, fairqr.Audit], tmp_path: Path
) -> None:
    audit = audits["favouring"]
    copy = AuditFolder(Path(shutil.copytree(audit.folder, tmp_path / "copy")))
    assert verify(copy, audit.digest, finishing.make_again).problems == ()
    assert {"all_groups.csv", "figures/lorenz.svg"} <= copy.manifest().files.keys()
    path = copy.folder / "all_groups.csv"
    path.write_text(path.read_text().replace("shop 3,", "shop 4,"))
    assert verify(copy, audit.digest).problems == ("The file all_groups.csv was changed.",)


def kept(folder: Path, answers: Market, engine: str = "", **manifest: Any) -> fairqr.Audit:
    """Return a sealed audit of the answers of an engine, whose documents have ids of its own."""
    own = [
        it.model_copy(update={"ids": tuple(f"{engine} {it.query} {id_}" for id_ in it.ids)})
        for it in observed(answers)
    ]
    return sealed(
        folder,
        queries_of(len(answers)),
        own,
        attributes=OPEN.attributes,
        spec=spec_of(k=5, rerank=0),
        reported=False,
        **manifest,
    )


@pytest.mark.promise("audit")
def test_two_audits_are_compared_over_all_groups(tmp_path: Path) -> None:
    """A seller that an engine favours shows from one audit to the next, over all groups and among
    the largest of both audits.

    The second engine has no documents of shop 0, and those of a shop that the first lacks.
    """
    answers = market(30, 60)
    later = [
        [([it.replace("shop 0", "new shop") for it in of], r) for of, r in answer]
        for answer in market(30, 60, favour=4.0)
    ]
    first = kept(tmp_path / "first", answers)
    second = kept(tmp_path / "second", later, "new")
    found = compare(first, second)
    sizes = Counter(of[0] for answer in answers + later for of, _ in answer)
    largest = {name for name, _ in sizes.most_common(5)}
    groups = {it.group for it in found.changes}
    assert largest | {"shop 0", "new shop", "other"} <= groups
    assert len(groups) == dimensions.MOST_GROUPS + 1
    exposures = {it.group: it for it in found.changes if it.figure == "exposure"}
    assert exposures["shop 0"].after == exposures["new shop"].before == 0
    assert exposures["shop 0"].before > 0.1
    assert exposures["shop 1"].direction == "up"
    (over_all,) = found.concentrations
    assert over_all.direction == "up"
    for side, audit in ((over_all.before, first), (over_all.after, second)):
        (own,) = audit.figures.concentrations
        assert side["gini"].value == pytest.approx(own.gini.value)
        assert side["groups"] == len(own.groups)
    assert over_all.change.value == pytest.approx(
        over_all.after["gini"].value - over_all.before["gini"].value
    )
    (said,) = [sentence for sentence in found.sentences() if "Gini" in sentence]
    change = over_all.change
    assert said.startswith("seller: the Gini index over all groups went up: ")
    assert f"({change.low:+.2f} to {change.high:+.2f})" in said
    write_comparison(found, tmp_path / "out")
    assert "| seller | Gini index |" in (tmp_path / "out" / "report.md").read_text()
    (held,) = json.loads((tmp_path / "out" / "comparison.json").read_text())["concentrations"]
    assert held["change"]["value"] == pytest.approx(change.value)
    # Only the queries of both count, and what they weigh in both.
    part = compare(kept(tmp_path / "part", answers[:20]), second).concentrations[0]
    assert part.after["gini"].queries == 20
    assert part.before["gini"].value == pytest.approx(
        audit_of(answers[:20]).concentrations[0].gini.value, abs=0.02
    )


def test_a_change_needs_other_answers_and_the_same_settings(tmp_path: Path) -> None:
    answers = market(30, 20)
    favouring = market(30, 20, favour=4.0)
    first = kept(tmp_path / "first", answers)
    (found,) = compare(first, kept(tmp_path / "same", answers)).concentrations
    assert (found.direction, found.change.value) == ("same_answers", 0)
    judged = kept(tmp_path / "judged", favouring, "new", relevance="judged")
    (found,) = compare(first, judged).concentrations
    assert found.direction == "settings"
    few = kept(tmp_path / "few", favouring[:3], "new")
    (found,) = compare(first, few).concentrations
    assert found.direction == "too_few"


async def test_a_run_file_gives_what_the_engine_gives(
    audits: dict[str, fairqr.Audit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = audits["favouring"]
    monkeypatch.chdir(tmp_path)
    labels = [f"{it.id},{it.fields['seller']}" for it in shelf(favour=8)]
    Path("labels.csv").write_text("\n".join(["id,seller", *labels]))
    lines = [
        f"{answer.query} Q0 {id_} {rank} {100 - rank} own"
        for answer in AuditFolder(audit.folder).observed(WORDS)
        for rank, id_ in enumerate(answer.ids, start=1)
    ]
    Path("own.run").write_text("\n".join(lines))
    Path("own.source.yaml").write_text(
        "{name: own, engine: run, runs: own.run, "
        "attributes: {seller: {labels: labels.csv, groups: any}}}"
    )
    again = await fairqr.audit("own.source.yaml", ROWS, **OPTIONS)
    (one,) = audit.figures.concentrations
    (other,) = again.figures.concentrations
    assert other.gini == one.gini
    of_engine = dict(zip(one.groups, one.exposure.tolist(), strict=True))
    assert dict(zip(other.groups, other.exposure.tolist(), strict=True)) == pytest.approx(of_engine)


def test_pseudonyms_change_no_figure_but_lots(tmp_path: Path) -> None:
    """Lots are drawn in the order of the queries."""
    answers = market(8, 10)
    audits = []
    for redact in (False, True):
        audit = sealed(
            tmp_path / str(redact),
            queries_of(8, alike=True),
            observed(answers),
            redact=redact,
            attributes=OPEN.attributes,
            spec=spec_of(k=5, rerank=0),
        )
        audits.append(audit)
    first, second = (audit.figures.concentrations[0] for audit in audits)
    assert first.gini == second.gini
    assert first.groups == second.groups
    folder = AuditFolder(tmp_path / "True")
    assert verify(folder, audits[1].digest, finishing.make_again).problems == ()
