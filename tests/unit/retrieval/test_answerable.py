"""Whether a collection has anything for a query at all, beside how documents compare."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fairqr.base.errors import SourceError
from fairqr.retrieval.engines.engine import Query, searched
from fairqr.retrieval.engines.hybrid.embedded import HybridEngine
from fairqr.retrieval.engines.hybrid.encoded_pool import EncodedPoolEngine
from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.fairness.answerable import (
    ALWAYS,
    Answerability,
    inverse_frequency,
    nearest_mean,
    unrelated_queries,
)
from fairqr.retrieval.fairness.relevance import CALIBRATED, FITTED
from fairqr.retrieval.sources.documents import Document
from fairqr.retrieval.texts.words import english_analyzer
from tests.unit.engines import hits_of
from tests.unit.retrieval.embedded import built, upsert
from tests.unit.retrieval.vector_encoders import (
    CountingEncoder,
    generated,
    stored_vector,
    unit,
    unrelated_by_hand,
    word_vector,
)

UNANSWERABLE = Path(__file__).parents[3] / "benchmarks" / "unanswerable_queries.txt"
DIMENSIONS = 64
DOCUMENTS = generated(120)
RELATED = "w1 w2"
UNRELATED = "zzqq blorptangle"


@pytest.fixture
def lexical(tmp_path: Path) -> TantivyEngine:
    return built(tmp_path / "v1", DOCUMENTS)


async def hybrid(lexical: TantivyEngine) -> HybridEngine:
    return await HybridEngine.open(lexical, CountingEncoder(dimensions=DIMENSIONS))


def test_a_regression_gives_probabilities_that_never_overflow() -> None:
    assert ALWAYS.probability(-1000, 0) == 1
    for fit in FITTED.values():
        for calibration in fit:
            probabilities = [
                calibration.answerable.probability(above, 2.0) for above in (-99, 0, 0.3, 9)
            ]
            assert probabilities == sorted(probabilities)
            assert 0 <= probabilities[0] < 0.5 < probabilities[2] < probabilities[3] <= 1


def test_the_five_highest_cosines_count() -> None:
    assert nearest_mean(np.array([0.1, 0.9, np.nan, 0.5, 0.6, 0.7, 0.8])) == pytest.approx(0.7)
    assert nearest_mean(np.array([0.2, 0.4])) == pytest.approx(0.3)
    assert nearest_mean(np.array([np.nan])) == 0
    assert inverse_frequency(10, 0) > inverse_frequency(10, 9) > inverse_frequency(10, 12) > 0


def test_fitted_and_tested_queries_differ() -> None:
    tested = UNANSWERABLE.read_text(encoding="utf-8").splitlines()
    assert len(set(tested)) == 100
    assert not set(tested) & set(unrelated_queries())
    assert all(query.strip() for query in unrelated_queries())


async def test_it_is_that_of_the_definition(lexical: TantivyEngine) -> None:
    """Written out in plain loops."""
    engine = await hybrid(lexical)
    hits = await hits_of(engine, RELATED, 20)
    texts = {d.id: f"{d.title}\n{d.text}" for d in DOCUMENTS}
    analyze = english_analyzer().analyze
    words_of = {id_: set(analyze(text)) for id_, text in texts.items()}
    vectors = [stored_vector(word_vector(text, DIMENSIONS)) for text in texts.values()]
    query = unit(word_vector(RELATED, DIMENSIONS))
    nearest = np.mean(sorted(float(vector @ query) for vector in vectors)[-5:])
    weights = {}
    for word in analyze(RELATED):
        having = sum(word in words for words in words_of.values())
        weights[word] = math.log(1 + (120 - having + 0.5) / (having + 0.5))
    held = [sum(weights[word] for word in weights.keys() & words_of[id_]) for id_ in hits.ids]
    above = unrelated_by_hand(vectors).above(float(nearest))
    expected = CALIBRATED.words.answerable.probability(above, float(np.mean(held)))
    assert hits.answerable == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["hybrid", "pool"])
async def test_unanswerable_queries_have_low_probabilities(
    lexical: TantivyEngine, kind: str
) -> None:
    encoder = CountingEncoder(dimensions=DIMENSIONS)
    engine = await HybridEngine.open(lexical, encoder)
    # A pool is what words find, so a query for it needs a word that documents have.
    unrelated = UNRELATED
    if kind == "pool":
        engine = await EncodedPoolEngine.open(lexical, encoder, keeps_order=True)
        unrelated = f"{UNRELATED} quxbar wibblefrotz flimmerwock snazzle w1"
    found = await hits_of(engine, RELATED, 50)
    nothing = await hits_of(engine, unrelated, 50)
    assert nothing.answerable < 0.4 < 0.7 < found.answerable
    for hits in (nothing, found):
        assert hits.probability == pytest.approx(hits.answerable * hits.relevance)
    given = tuple(found.ids[7:11])
    for limited in (Query(RELATED, 4, only=given), Query(RELATED, 5, within=("gender", "female"))):
        (hits,) = await engine.search([limited])
        assert hits.answerable == pytest.approx(found.answerable)


async def test_it_changes_no_ranking(lexical: TantivyEngine) -> None:
    engine = await hybrid(lexical)
    hits = await hits_of(engine, RELATED, 30)
    assert hits.scores == hits.relevance.tolist()
    certain = [replace(fit, answerable=ALWAYS) for fit in CALIBRATED]
    engine.calibrations = type(CALIBRATED)(*certain)
    other = await hits_of(engine, RELATED, 30)
    assert (other.ids, other.scores, other.answerable) == (hits.ids, hits.scores, 1)


async def test_unrelated_queries_are_compared_once_per_index(
    lexical: TantivyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await hybrid(lexical)
    before = (await hits_of(first, RELATED, 5)).answerable
    place = "fairqr.retrieval.engines.hybrid.embedded.background_of"
    with monkeypatch.context() as patched:
        patched.setattr(place, None)
        assert (await hits_of(await hybrid(lexical), RELATED, 5)).answerable == before
    await upsert(lexical, [Document("new", "Phone", unrelated_queries()[0], {"gender": "female"})])
    added = (await hits_of(first, RELATED, 5)).answerable
    assert added != before
    assert (await hits_of(await hybrid(lexical), RELATED, 5)).answerable == added


async def test_a_probability_of_an_engine_is_checked(lexical: TantivyEngine) -> None:
    engine = await hybrid(lexical)
    wrong = replace(CALIBRATED.words, answerable=TooSure(0.0))
    engine.calibrations = CALIBRATED._replace(words=wrong)
    with pytest.raises(SourceError, match="a probability outside of 0 to 1"):
        await searched(engine, [Query(RELATED, 5)])


class TooSure(Answerability):
    """Returns what is no probability."""

    def probability(self, similarity: float, words: float) -> float:
        return 1.5
