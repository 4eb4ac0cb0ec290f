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
    return (
        sum(
            abs(exposure * other_due - other_exposure * due)
            for (exposure, due), (other_exposure, other_due) in pairs
        )
        / 2
    )


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
    index = gini_index(exposures, target)

    assert 0 <= index <= 1
    assert index == pytest.approx(by_pairs(exposures, target), abs=1e-9)


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
    mixed = [
        split[position]
        for position in sorted(range(len(split)), key=lambda position: order[position % 8])
    ]

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
    second = drawn[drawn[:, 0] == 3, 1]
    counts = np.bincount(second, minlength=3)
    assert stats.chisquare(counts, len(second) * chances[:3] / 0.5).pvalue > 0.001


Market = list[list[tuple[list[str], float]]]
"""By query its documents, best first: the sellers of each, and its relevance."""


def market(queries: int, sellers: int, favour: float = 0.0, seed: int = 0) -> Market:
    """Return answers of an engine that ranks by chance, and puts one seller first."""
    random = np.random.default_rng(seed)
    sizes = 1 / np.arange(1, sellers + 1)
    answers = []
    for _ in range(queries):
        seller_of = random.choice(sellers, 60, p=sizes / sizes.sum())
        relevance = random.random(60).round(3)
        keys = np.log(relevance + 1e-9) + random.gumbel(size=60) + favour * (seller_of == 1)
        order = np.argsort(-keys)
        answers.append([([f"shop {seller_of[row]}"], float(relevance[row])) for row in order])
    return answers


def observed(answers: Market) -> Iterator[Observation]:
    for number, answer in enumerate(answers, start=1):
        names = named_array([{name: 1 / len(sellers) for name in sellers} for sellers, _ in answer])
        yield Observation(
            query=f"q{number}",
            status="ok",
            ids=tuple(f"d{position}" for position in range(len(answer))),
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
    concentration = gathered_of(answers).totals.concentration()
    assert concentration is not None
    return concentration


def test_an_even_target_counts_all_groups_that_a_query_found() -> None:
    """Of 60 sellers the 20 largest have figures; those in other have their shares all the same."""
    answers = market(12, 60)
    groups = audit_of(answers, target="uniform:1").groups
    named = {figures.group for figures in groups} - {"other"}
    expected: dict[str, float] = defaultdict(float)
    weights = sum(range(1, len(answers) + 1))
    for weight, answer in enumerate(answers, start=1):
        sellers_found = {seller for sellers, _ in answer for seller in sellers}
        for seller in sellers_found:
            expected[seller if seller in named else "other"] += (
                weight / weights / len(sellers_found)
            )

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
    (concentration,) = audit_of(answers, target=target).concentrations
    weight_of = {"relevance": target.count("relevance"), "uniform": target.count("uniform")}
    exposures: dict[str, float] = {}
    targets: dict[str, float] = {}
    for weight, answer in enumerate(answers, start=1):
        exposed: dict[str, float] = {}
        due: dict[str, float] = {}
        for rank, (sellers, relevance) in enumerate(answer):
            for seller in sellers:
                attention = LOG2.weights(5)[rank] / len(sellers) if rank < 5 else 0.0
                exposed[seller] = exposed.get(seller, 0.0) + attention
                due[seller] = due.get(seller, 0.0) + relevance / len(sellers)
        for seller in exposed:
            share = weight_of["relevance"] * due[seller] / sum(due.values())
            share += weight_of["uniform"] / len(exposed)
            targets[seller] = targets.get(seller, 0.0) + weight * share
            share = exposed[seller] / sum(exposed.values())
            exposures[seller] = exposures.get(seller, 0.0) + weight * share
    assert set(concentration.groups) == set(exposures)
    for values, expected in ((concentration.exposure, exposures), (concentration.target, targets)):
        total = sum(expected.values())
        assert values == pytest.approx([expected[group] / total for group in concentration.groups])
    assert concentration.gini.value == pytest.approx(
        by_pairs(concentration.exposure, concentration.target)
    )
    assert (
        concentration.unseen
        == sum(not exposure for exposure in exposures.values())
        == concentration.unseen_with_target
    )
    assert list(concentration.gap_quantiles.values()) == sorted(
        concentration.gap_quantiles.values()
    )
    assert concentration.gap_quantiles[1] == pytest.approx(
        max(concentration.target - concentration.exposure)
    )


def test_the_interval_is_that_of_leaving_out_each_query() -> None:
    """Computed by brute force, on the logit scale."""
    answers = market(20, 15)
    gini = concentration_of(answers).gini
    logits = []
    for number in range(20):
        remaining = concentration_of(answers[:number] + answers[number + 1 :]).gini.value
        logits.append(math.log(remaining / (1 - remaining)))
    logit_of_all = math.log(gini.value / (1 - gini.value))
    changes = np.array(logits) - logit_of_all
    freedom = min(19, 3 * (changes**2).sum() ** 2 / (changes**4).sum() - 1)
    half = stats.t.ppf(0.975, freedom) * math.sqrt((changes**2).sum())

    for end, logit in ((gini.low, logit_of_all - half), (gini.high, logit_of_all + half)):
        assert end == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-7)


@pytest.mark.promise("audit")
def test_intervals_hold_what_other_queries_show() -> None:
    """The interval of the Gini index over all groups holds what other queries show, and lists drawn
    by lot stand beside it.

    Forty audits of as many queries are made; lots are what an engine without favour is like.
    """
    concentrations = [concentration_of(market(40, 40, seed=seed)) for seed in range(1, 41)]
    mean = np.mean([concentration.gini.value for concentration in concentrations])
    holds = [
        concentration.gini.low <= mean <= concentration.gini.high
        for concentration in concentrations
    ]
    assert sum(holds) >= 36
    by_lot = [concentration.gini_by_lot for concentration in concentrations]
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
    change = change_of(before, after)

    def difference(queries: Sequence[int]) -> float:
        later, earlier = (
            concentration_of([answers[query] for query in queries]).gini.value
            for answers in (after, before)
        )
        return later - earlier

    difference_of_all = difference(range(12))
    differences = [
        difference([query for query in range(12) if query != number]) for number in range(12)
    ]
    changes = np.array(differences) - difference_of_all
    freedom = min(11, 3 * (changes**2).sum() ** 2 / (changes**4).sum() - 1)
    half = stats.t.ppf(0.975, freedom) * math.sqrt((changes**2).sum())
    assert change.value == pytest.approx(difference_of_all)
    assert (change.low, change.high) == pytest.approx(
        (difference_of_all - half, difference_of_all + half), abs=1e-7
    )


@pytest.mark.parametrize("favour", [0.0, 1.5])
def test_intervals_of_a_change_hold_what_other_queries_show(favour: float) -> None:
    """That is 0 where only chance ranks the later documents otherwise, by the same rule."""
    changes = []
    for seed in range(1, 41):
        later = seed if favour else seed + 100
        changes.append(change_of(market(30, 40, seed=seed), market(30, 40, favour, later)))
    mean = np.mean([change.value for change in changes]) if favour else 0.0

    assert sum(change.low <= mean <= change.high for change in changes) >= 36


def test_order_and_names_change_nothing() -> None:
    answers = market(30, 25)
    concentration = concentration_of(answers)
    turned = concentration_of(answers[::-1])
    assert turned.gini == concentration.gini
    renamed = [
        [([seller.replace("shop", "store") for seller in sellers], r) for sellers, r in q]
        for q in answers
    ]
    renamed_concentration = concentration_of(renamed)
    assert renamed_concentration.gini == concentration.gini
    assert renamed_concentration.gini_by_lot == concentration.gini_by_lot


def test_a_seller_may_be_called_other() -> None:
    """It is one of the groups found; without it, what is no group's own is none."""
    answers = market(10, 8)
    assert "other" not in concentration_of(answers).groups
    named = [
        [(["other"] if sellers == ["shop 1"] else sellers, r) for sellers, r in q] for q in answers
    ]
    concentration = concentration_of(named)
    assert concentration.gini == concentration_of(answers).gini
    assert "other" in concentration.groups


def test_there_is_no_index_without_open_attributes_or_targets() -> None:
    assert not measured(queries_of(3), ()).concentrations
    unknown = [[(sellers, 0.0) for sellers, _ in answer] for answer in market(8, 5)]
    assert not audit_of(unknown).concentrations
    gini = concentration_of(market(3, 5)).gini
    assert 0 < gini.value < 1
    assert math.isnan(gini.low)


def test_a_query_that_shows_or_finds_no_label_is_left_out() -> None:
    answers = market(10, 8)
    without = concentration_of(answers)
    answers += [[([], 0.5)] * 20, [([], 0.5)] * 5 + [(["shop 9"], 0.5)]]

    concentration = concentration_of(answers)

    assert concentration.gini == without.gini
    assert concentration.gini.queries == 10


def test_only_the_shares_of_groups_are_kept_of_a_query() -> None:
    """Its pool is not kept: documents that share their groups add nothing."""
    sizes = []
    for times in (1, 20):
        answers = [
            [document for document in answer for _ in range(times)] for answer in market(5, 2_000)
        ]
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
    audit_by_name = {}
    for name, favour in (("fair", 0), ("favouring", 8)):
        folder = tmp_path_factory.mktemp(name)
        engine = built(folder / "index", shelf(favour=favour), OPEN)
        audit_by_name[name] = asyncio.run(
            fairqr.audit(engine, ROWS, folder=folder / "audit", **OPTIONS)
        )
    return audit_by_name


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


def test_a_finding_says_what_all_groups_get(audits: dict[str, fairqr.Audit]) -> None:
    audit = audits["favouring"]
    (concentration,) = audit.figures.concentrations
    gini = concentration.gini

    (finding,) = [sentence for sentence in audit.findings if "Gini" in sentence]

    unseen = rf"seller: {concentration.unseen} groups? of {SELLERS} gets? no exposure at all\."
    assert re.match(unseen, finding)
    assert f"The Gini index is {gini.value:.2f} ({gini.low:.2f} to {gini.high:.2f})" in finding
    assert f"Lists drawn by lot would have {concentration.gini_by_lot:.2f}." in finding


def test_a_report_shows_what_all_groups_get(audits: dict[str, fairqr.Audit]) -> None:
    audit = audits["favouring"]
    (concentration,) = audit.figures.concentrations

    report = (audit.folder / "report.md").read_text()

    assert "(figures/lorenz.svg)" in report
    assert f"the gaps of all {SELLERS} groups" in report
    assert f"| 100% | +{100 * concentration.gap_quantiles[1]:.3f} |" in report


def test_the_numbers_of_all_groups_stand_in_json(audits: dict[str, fairqr.Audit]) -> None:
    audit = audits["favouring"]
    (concentration,) = audit.figures.concentrations

    (content,) = json.loads((audit.folder / "audit.json").read_text())["concentration"]

    assert content["gini"]["value"] == pytest.approx(concentration.gini.value)
    assert content["unseen"] == concentration.unseen
    curve = [*zip(CURVE_AT, concentration.exposure_of_worst(CURVE_AT), strict=True)]
    assert np.array(content["lorenz"]) == pytest.approx(np.array(curve))
    curve = [*zip(CURVE_AT, concentration.exposure_of_worst_by_lot(CURVE_AT), strict=True)]
    assert np.array(content["lorenz_by_lot"]) == pytest.approx(np.array(curve))


def test_all_groups_have_a_table(audits: dict[str, fairqr.Audit]) -> None:
    audit = audits["favouring"]
    (concentration,) = audit.figures.concentrations

    table = audit.frames["all_groups"]

    assert table.group.tolist() == [*concentration.groups]
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
    observations = [
        observation.model_copy(
            update={"ids": tuple(f"{engine} {observation.query} {id_}" for id_ in observation.ids)}
        )
        for observation in observed(answers)
    ]
    return sealed(
        folder,
        queries_of(len(answers)),
        observations,
        attributes=OPEN.attributes,
        spec=spec_of(k=5, rerank=0),
        reported=False,
        **manifest,
    )


ANSWERS = market(30, 60)


@pytest.fixture(scope="module")
def later_answers() -> Market:
    """Return answers of an engine that favours shop 1.

    It has no documents of shop 0, and those of a shop that the first engine lacks.
    """
    return [
        [
            ([seller.replace("shop 0", "new shop") for seller in sellers], relevance)
            for sellers, relevance in answer
        ]
        for answer in market(30, 60, favour=4.0)
    ]


@pytest.fixture(scope="module")
def pair(
    later_answers: Market, tmp_path_factory: pytest.TempPathFactory
) -> tuple[fairqr.Audit, fairqr.Audit]:
    """Audits of two engines, of which the second favours shop 1."""
    folder = tmp_path_factory.mktemp("pair")
    return kept(folder / "first", ANSWERS), kept(folder / "second", later_answers, "new")


@pytest.mark.promise("audit")
def test_two_audits_are_compared_over_all_groups(pair: tuple[fairqr.Audit, fairqr.Audit]) -> None:
    """A seller that an engine favours shows from one audit to the next, over all groups."""
    first, second = pair

    (over_all,) = compare(first, second).concentrations

    assert over_all.direction == "up"
    for side, audit in ((over_all.before, first), (over_all.after, second)):
        (concentration,) = audit.figures.concentrations
        assert side["gini"].value == pytest.approx(concentration.gini.value)
        assert side["groups"] == len(concentration.groups)
    difference = over_all.after["gini"].value - over_all.before["gini"].value
    assert over_all.change.value == pytest.approx(difference)


@pytest.mark.promise("audit")
def test_the_largest_groups_of_both_audits_are_compared(
    pair: tuple[fairqr.Audit, fairqr.Audit], later_answers: Market
) -> None:
    """A seller that an engine favours shows from one audit to the next, among the largest groups of
    both audits.
    """
    changes = compare(*pair).changes

    sizes = Counter(sellers[0] for answer in ANSWERS + later_answers for sellers, _ in answer)
    largest = {name for name, _ in sizes.most_common(5)}
    groups = {change.group for change in changes}
    assert largest | {"shop 0", "new shop", "other"} <= groups
    assert len(groups) == dimensions.MOST_GROUPS + 1
    exposures = {change.group: change for change in changes if change.figure == "exposure"}
    assert exposures["shop 0"].after == exposures["new shop"].before == 0
    assert exposures["shop 0"].before > 0.1
    assert exposures["shop 1"].direction == "up"


def test_a_comparison_says_how_the_index_changed(
    pair: tuple[fairqr.Audit, fairqr.Audit], tmp_path: Path
) -> None:
    comparison = compare(*pair)
    (over_all,) = comparison.concentrations
    change = over_all.change

    (finding,) = [sentence for sentence in comparison.sentences() if "Gini" in sentence]
    write_comparison(comparison, tmp_path / "out")

    assert finding.startswith("seller: the Gini index over all groups went up: ")
    assert f"({change.low:+.2f} to {change.high:+.2f})" in finding
    assert "| seller | Gini index |" in (tmp_path / "out" / "report.md").read_text()
    (content,) = json.loads((tmp_path / "out" / "comparison.json").read_text())["concentrations"]
    assert content["change"]["value"] == pytest.approx(change.value)


def test_only_the_queries_of_both_audits_count(
    pair: tuple[fairqr.Audit, fairqr.Audit], tmp_path: Path
) -> None:
    """And what they weigh in both."""
    part = kept(tmp_path / "part", ANSWERS[:20])

    (over_all,) = compare(part, pair[1]).concentrations

    assert over_all.after["gini"].queries == 20
    expected = audit_of(ANSWERS[:20]).concentrations[0].gini.value
    assert over_all.before["gini"].value == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    ("answers", "options", "direction"),
    [
        pytest.param(market(30, 20), {}, "same_answers", id="equal answers"),
        pytest.param(
            market(30, 20, favour=4.0),
            {"engine": "new", "relevance": "judged"},
            "settings",
            id="other judgements",
        ),
        pytest.param(market(3, 20, favour=4.0), {"engine": "new"}, "too_few", id="three queries"),
    ],
)
def test_a_change_needs_other_answers_and_the_same_settings(
    tmp_path: Path, answers: Market, options: dict[str, str], direction: str
) -> None:
    first = kept(tmp_path / "first", market(30, 20))
    second = kept(tmp_path / "second", answers, **options)

    (concentration,) = compare(first, second).concentrations

    assert concentration.direction == direction
    assert direction != "same_answers" or concentration.change.value == 0


async def test_a_run_file_gives_what_the_engine_gives(
    audits: dict[str, fairqr.Audit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = audits["favouring"]
    monkeypatch.chdir(tmp_path)
    labels = [f"{document.id},{document.fields['seller']}" for document in shelf(favour=8)]
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
    audit_of_run = await fairqr.audit("own.source.yaml", ROWS, **OPTIONS)
    (of_audit,) = audit.figures.concentrations
    (of_run,) = audit_of_run.figures.concentrations
    assert of_run.gini == of_audit.gini
    of_engine = dict(zip(of_audit.groups, of_audit.exposure.tolist(), strict=True))
    assert dict(zip(of_run.groups, of_run.exposure.tolist(), strict=True)) == pytest.approx(
        of_engine
    )


def test_pseudonyms_change_no_figure_but_lots(tmp_path: Path) -> None:
    """Lots are drawn in the order of the queries."""

    def audit(folder: Path, *, redact: bool) -> fairqr.Audit:
        return sealed(
            folder,
            queries_of(8, alike=True),
            observed(market(8, 10)),
            redact=redact,
            attributes=OPEN.attributes,
            spec=spec_of(k=5, rerank=0),
        )

    plain = audit(tmp_path / "plain", redact=False)
    redacted = audit(tmp_path / "redacted", redact=True)

    (first,) = plain.figures.concentrations
    (second,) = redacted.figures.concentrations
    assert first.gini == second.gini
    assert first.groups == second.groups
    folder = AuditFolder(tmp_path / "redacted")
    assert verify(folder, redacted.digest, finishing.make_again).problems == ()
