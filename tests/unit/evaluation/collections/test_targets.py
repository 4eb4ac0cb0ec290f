"""Labels and targets of collections: from the corpus, by hand, and by the track's rule in loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairqr.base.errors import TargetError, UnknownAttributeError
from fairqr.evaluation.collections.collection import Collection
from fairqr.evaluation.collections.finding import find_collection, import_collection
from fairqr.evaluation.collections.labels import Groups, scan_corpus, with_unknown
from fairqr.evaluation.collections.query_targets import query_targets, trec_target
from fairqr.retrieval.fairness.exposure import FloatArray, normalise
from tests.unit.evaluation.collections.official import write_2022


@pytest.fixture(scope="module")
def fair22(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    """With all dimensions of the track."""
    folder = tmp_path_factory.mktemp("fair22")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAIRQR_DATA_DIR", str(folder))
        import_collection("trec-fair-2022-all", [write_2022(folder / "raw")], "x")
        return find_collection("x", "train")


@pytest.fixture(scope="module")
def labels(fair22: Collection) -> Groups:
    return scan_corpus(fair22.corpus, fair22.relevant_documents())


def shares_of(collection: Collection, labels: Groups, name: str, topic: str) -> dict[str, float]:
    found = query_targets(collection, labels, name)
    shares = dict(zip(found.dimension.groups, found.targets[topic].tolist(), strict=True))
    assert sum(shares.values()) == pytest.approx(1)
    return shares


def test_a_scan_keeps_what_was_asked_for(fair22: Collection) -> None:
    """The unknown is explicit, labels are shared out, and what is not there is all zeros."""
    told: list[int] = []
    scan = scan_corpus(fair22.corpus, ["39", "12", "999"], progress=told.append)
    assert (scan.documents, told) == (4, [4])
    assert scan.known(["39", "999"]) == ["39"]
    gender = scan.memberships("gender", ["39", "999", "12"], "group")
    np.testing.assert_allclose(gender, [[0.5, 0.5, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    assert scan.memberships("gender", ["39"]).shape == (1, 3)
    assert scan.memberships("source_geography", ["39"], "group")[0, -1] == 0.25
    # Of four documents one is a woman, one half a woman and half a man, one neither, one unknown.
    np.testing.assert_allclose(scan.shares["gender"], [1.5 / 4, 0.5 / 4, 1 / 4, 1 / 4])
    with pytest.raises(UnknownAttributeError):
        scan.memberships("colour", ["12"])
    assert scan_corpus(fair22.corpus, []).memberships("gender", ["12"]).tolist() == [[0] * 3]


def test_the_tracks_targets(fair22: Collection, labels: Groups) -> None:
    """Topic 84 has a woman, a person of another gender, and a page that is not there.

    Topic 265: one page half woman, half man, and one of which nothing is known.
    """
    wanted = {"female": 0.4975, "male": 0.2475, "non-binary": 0.255, "unknown": 0}
    assert shares_of(fair22, labels, "gender", "84") == pytest.approx(wanted)
    both = 0.125 + 0.12375
    wanted = {"female": both, "male": both, "non-binary": 0.0025, "unknown": 0.5}
    assert shares_of(fair22, labels, "gender", "265") == pytest.approx(wanted)


def test_targets_of_a_product_name_their_cells(fair22: Collection, labels: Groups) -> None:
    """The partly unknown are cells of their own, in the order of the dimension's groups."""
    named = shares_of(fair22, labels, "gender×geography", "265")
    assert named["unknown × unknown"] == pytest.approx(0.5)
    # Half of the known half by the page, Oceania two thirds of it; half by the populations.
    oceania = 0.0053481371
    assert named["female × Oceania"] == pytest.approx(0.25 / 3 + 0.25 * 0.495 * oceania, rel=1e-6)
    # Of the two pages of topic 84 one has no region, and no other gender: a block of its own.
    other = shares_of(fair22, labels, "gender×geography", "84")
    assert other["non-binary × unknown"] == pytest.approx(0.25 + 0.25 * 0.01)
    assert other["male × unknown"] == pytest.approx(0.25 * 0.495)
    # And the exposure is measured in the same cells.
    dimension = query_targets(fair22, labels, "gender×geography").dimension
    members = labels.in_dimension(dimension, ["307", "999"])
    assert members.shape == (2, len(dimension.groups))
    assert members[0, dimension.groups.index("non-binary × unknown")] == 1
    assert not members[1].any()


def test_the_other_dimensions_have_no_population(fair22: Collection, labels: Groups) -> None:
    """The track's own target keeps the relevant documents' shares; others need a population."""
    others = list(fair22.corpus.schema.attributes)[3:]
    assert others == ["occupation", "alphabet", "age", "popularity", "languages"]
    # Of the two pages of the topic one is a writer's and a juggler's, and one of nobody.
    shares = shares_of(fair22, labels, "occupation", "84")
    assert {group: it for group, it in shares.items() if it} == {"writer": 0.25, "unknown": 0.75}
    assert len(shares_of(fair22, labels, "gender×languages", "84")) == 4 * 4
    with pytest.raises(TargetError, match="no population for 'occupation'"):
        query_targets(fair22, labels, "occupation", "relevance:0.5,population:0.5")
    with pytest.raises(UnknownAttributeError):
        query_targets(fair22, labels, "gender×colour")


shares = st.floats(0, 1, allow_nan=False).map(lambda share: round(share, 6))


@st.composite
def documents(draw: st.DrawFn, attributes: int) -> tuple[list[FloatArray], list[FloatArray]]:
    """Memberships with the unknown last, and populations, of some attributes."""
    count = draw(st.integers(1, 6))
    memberships, populations = [], []
    for _ in range(attributes):
        groups = draw(st.integers(2, 4))
        raw = draw(hnp.arrays(np.float64, (count, groups + 1), elements=shares))
        # A document about which nothing is drawn is all unknown.
        raw[:, -1] += raw.sum(axis=1) == 0
        memberships.append(normalise(raw))
        populations.append(normalise(draw(hnp.arrays(np.float64, groups, elements=shares)) + 0.01))
    return memberships, populations


def by_hand(memberships: list[FloatArray], populations: list[FloatArray]) -> list[float]:
    """The rule of 2022 in loops over cells, each a tuple of positions; the last is unknown."""
    cells = list(itertools.product(*(range(len(p) + 1) for p in populations)))

    def known(cell: tuple[int, ...]) -> list[bool]:
        return [group < len(p) for group, p in zip(cell, populations, strict=True)]

    mean = {}
    for cell in cells:
        own = [members[:, group] for members, group in zip(memberships, cell, strict=True)]
        mean[cell] = float(np.mean([np.prod(document) for document in zip(*own, strict=True)]))
    target = []
    for cell in cells:
        world, block = 1.0, sum(mean[it] for it in cells if known(it) == known(cell))
        for population, group in zip(populations, cell, strict=True):
            world *= population[group] if group < len(population) else 1
        target.append(0.5 * mean[cell] + 0.5 * block * world if any(known(cell)) else mean[cell])
    return target


@pytest.mark.promise("evaluation")
@pytest.mark.parametrize("attributes", [1, 2, 3])
@given(data=st.data())
@settings(max_examples=40)
def test_the_tracks_target_is_that_of_loops_over_cells(
    attributes: int, data: st.DataObject
) -> None:
    """The track's target is that of loops over its cells.

    The array code does what the rule says, and the result is a distribution.
    """
    memberships, populations = data.draw(documents(attributes))
    target = trec_target(memberships, populations).ravel()
    np.testing.assert_allclose(target, by_hand(memberships, populations), atol=1e-12)
    assert target.min() >= 0
    assert target.sum() == pytest.approx(1)


def official(memberships: list[FloatArray], population: FloatArray) -> FloatArray:
    """The track's avg_with_bg for an attribute with a population and two without, in its steps."""
    first, *raw = memberships
    joint = np.einsum("nb,nc->nbc", *raw)
    target = np.einsum("na,nbc->abc", first, joint) / len(first)
    tail_mass = target.sum(axis=(1, 2), keepdims=True)
    imputed = np.where(tail_mass > 0, target, target.sum(axis=0))
    scale = imputed / imputed.sum(axis=(1, 2), keepdims=True)
    known = target[:-1].sum()
    spread = population[:, None, None] * scale[:-1] * known
    target[:-1] = target[:-1] * 0.5 + spread * 0.5
    return target


@given(documents(3))
def test_attributes_without_a_population_keep_their_shares(
    found: tuple[list[FloatArray], list[FloatArray]],
) -> None:
    """Alone as they are; beside others as in the track's code."""
    memberships, (population, *_) = found
    alone = trec_target(memberships[:1], [None])
    np.testing.assert_allclose(alone, memberships[0].mean(axis=0), atol=1e-12)
    target = trec_target(memberships, [population, None, None])
    np.testing.assert_allclose(target, official(memberships, population), atol=1e-12)
    assert target.sum() == pytest.approx(1)


def test_the_unknown_is_what_is_missing_to_one() -> None:
    """Also where rounding makes a row sum to a little more."""
    found = with_unknown([[0.25, 0.25], [0, 0], [0.7, 0.3 + 1e-15]])
    np.testing.assert_allclose(found, [[0.25, 0.25, 0.5], [0, 0, 1], [0.7, 0.3, 0]], atol=1e-12)
