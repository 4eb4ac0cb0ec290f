"""What retrieved texts say for keywords, worked by hand, and as laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairqr.retrieval.texts.evidence import Evidence, evidence_from_texts, stems_of

FEMALE, MALE = [1.0, 0.0], [0.0, 1.0]


def physicists(others: int = 150) -> tuple[list[frozenset[str]], np.ndarray]:
    """Fifty physicists and others that were retrieved after them; one person in five is a woman."""
    texts, groups = [], []
    for i in range(50 + others):
        woman = i % 5 == 0
        words = "physicist person " + ("she " if woman else "he ")
        words += "atoms " if i < 50 and i % 2 else ""
        words += "canvas his " if i >= 50 else ""
        words += "his " if i < 10 else ""
        words += "Curie " if i in (0, 5, 6) else ""
        texts.append(words)
        groups.append(FEMALE if woman else MALE)
    return stems_of(texts), np.array(groups)


def found(keyword: str, others: int = 150, query: str = "physicist") -> Evidence:
    stems, groups = physicists(others)
    return evidence_from_texts(query, stems, groups, 0, [keyword])[0]


def test_a_word_of_the_topic_stands_in_many_of_the_best_results() -> None:
    atom = found("atom")  # the texts have the plural
    assert (atom.documents, atom.topic_documents, atom.topic_share) == (25, 25, 0.5)
    assert atom.topic_lift == pytest.approx(0.5 / (1 / 152))
    assert atom.is_of_the_topic
    assert found("person").topic_lift == pytest.approx(1 / (151 / 152))
    assert found("person").is_of_the_topic


def test_a_word_that_stands_mostly_in_the_other_results_is_not_of_the_topic() -> None:
    canvas, his = found("canvas"), found("his")
    assert (canvas.topic_documents, canvas.is_of_the_topic) == (0, False)
    assert (his.topic_share, his.topic_lift) == (0.2, pytest.approx(0.2 / (151 / 152)))
    assert not his.is_of_the_topic


def test_with_few_other_results_the_share_decides() -> None:
    assert found("his", others=99).topic_lift == math.inf
    assert found("his", others=99).is_of_the_topic
    assert not found("his", others=100).is_of_the_topic


def test_a_word_of_the_group_raises_its_odds() -> None:
    # One in five is a woman; of those with "Curie", two in three.
    assert found("Curie").group_odds == pytest.approx(2 / (1 / 4))
    assert found("Curie").is_of_the_group
    assert found("she").group_odds == math.inf
    assert found("he").group_odds == 0
    assert found("person").group_odds == pytest.approx(1)
    assert not found("person").is_of_the_group


def test_a_keyword_of_several_words_needs_each_of_them() -> None:
    both = found("atom canvas")
    assert (both.documents, both.topic_documents, both.is_of_the_topic) == (0, 0, False)
    assert both.group_odds == 0
    # Those of the query go without saying.
    assert found("physicist atom").topic_documents == found("atom").topic_documents


@pytest.mark.parametrize("keyword", ["physicist", "nowhere", "the", "", "–"])
def test_own_unknown_stop_and_no_words_are_no_evidence(keyword: str) -> None:
    nothing = found(keyword)
    assert not nothing.is_of_the_topic
    assert not nothing.is_of_the_group


def test_nothing_retrieved_and_nobody_labelled_are_no_evidence() -> None:
    (nothing,) = evidence_from_texts("x", [], np.zeros((0, 2)), 0, ["atom"])
    assert nothing == Evidence(0, 0, 0.0, math.inf, 0.0, least_lift=0.5)
    assert not nothing.is_of_the_topic
    stems, groups = physicists()
    for members in (np.zeros_like(groups), np.tile(FEMALE, (len(groups), 1))):
        (atom,) = evidence_from_texts("x", stems, members, 0, ["atom"])
        assert atom.group_odds == 0


@given(
    st.lists(
        st.tuples(st.frozensets(st.sampled_from(["atom", "she", "canva"])), st.floats(0, 1)),
        max_size=220,
    )
)
def test_odds_of_two_groups_are_each_others_inverse(
    documents: list[tuple[frozenset[str], float]],
) -> None:
    stems = [own for own, _ in documents]
    members = np.array([[share, 1 - share] for _, share in documents]).reshape(len(documents), 2)
    for keyword in ("atom", "she", "canvas"):
        ours, others = (
            evidence_from_texts("x", stems, members, position, [keyword])[0] for position in (0, 1)
        )
        assert (ours.documents, ours.topic_share) == (others.documents, others.topic_share)
        assert 0 <= ours.topic_share <= 1
        if 1e-3 < ours.group_odds < 1e3 and 1e-3 < others.group_odds < 1e3:
            assert ours.group_odds * others.group_odds == pytest.approx(1, rel=1e-6)
        assert not (ours.is_of_the_group and others.is_of_the_group)


def test_half_a_surrogate_pair_in_a_text_is_no_word() -> None:
    assert stems_of(["tennis \ud800 player"]) == stems_of(["tennis player"])
