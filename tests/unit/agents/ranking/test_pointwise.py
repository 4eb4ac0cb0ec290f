"""monoT5 and monoBERT: tiny models of the same architectures, made and saved here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairqr.agents.ranking.pointwise import BATCH
from fairqr.agents.ranking.rankers import Cost, ItemRanker, RankerOptions, RankItem, open_ranker
from fairqr.base.errors import ModelUnavailableError
from tests.later import later
from tests.unit.agents.ranking.tiny_models import (
    LIMIT,
    TEXT,
    loaded,
    save_monobert,
    save_t5,
    without_numbers,
    without_vectors,
)

torch = later("torch", "neural")
transformers = later("transformers", "neural")

WORDS = ["fair", "ranking", "river", "merit", "Physicist", "true", "A", "of", "naïve", "日本", "🙂"]

Alone = Callable[[str, str], float]


def t5_alone(folder: Path) -> Alone:
    """Score one document with transformers alone, as the paper says."""
    tokenizer, model = loaded(folder, "AutoModelForSeq2SeqLM")
    answers = [tokenizer.get_vocab()[piece] for piece in ("▁false", "▁true")]

    def score(query: str, document: str) -> float:
        text = f"Query: {query} Document: {document} Relevant:"
        # T5's own tokenizer takes two spaces for one; the tiny one does not.
        inputs = tokenizer(" ".join(text.split()), return_tensors="pt")
        begin = torch.tensor([[model.config.decoder_start_token_id]])
        with torch.inference_mode():
            logits = model(input_ids=inputs["input_ids"], decoder_input_ids=begin).logits[0, 0]
        return float(logits[answers].double().log_softmax(0)[1])

    return score


def bert_alone(folder: Path) -> Alone:
    """Score one document with transformers alone."""
    tokenizer, model = loaded(folder, "AutoModelForSequenceClassification")

    def score(query: str, document: str) -> float:
        inputs = tokenizer([query], [document], return_tensors="pt")
        with torch.inference_mode():
            return float(model(**inputs).logits[0].double().log_softmax(0)[1])

    return score


def opened(name: str, folder: Path, **options: Any) -> ItemRanker:
    return open_ranker(name, options=RankerOptions(weights=str(folder), **options))


@pytest.fixture(scope="module", params=["monot5", "monobert"])
def kind(
    request: pytest.FixtureRequest, tiny_monot5: Path, tiny_monobert: Path
) -> tuple[ItemRanker, Alone]:
    """A ranker, and the plain way to its scores."""
    if request.param == "monot5":
        return opened("monot5", tiny_monot5), t5_alone(tiny_monot5)
    return opened("monobert", tiny_monobert), bert_alone(tiny_monobert)


def items(texts: Sequence[str]) -> list[RankItem]:
    return [RankItem(str(number), "", text) for number, text in enumerate(texts)]


async def test_scores_are_those_of_each_document_alone(kind: tuple[ItemRanker, Alone]) -> None:
    """Of many lengths at once: padding and company change nothing; the best is first."""
    ranker, alone = kind
    texts = [" ".join(WORDS[number % 7 : number % 7 + number % 6]) for number in range(BATCH + 9)]
    ranking = await ranker.rank("a fair query", items([*texts, "", " \n "]), "female")
    expected = [alone("female a fair query", text) for text in [*texts, "", ""]]
    assert ranking.scores == pytest.approx(expected, abs=1e-4)
    scores = ranking.scores or ()
    assert list(ranking.order) == sorted(
        range(len(scores)), key=lambda position: (-scores[position], position)
    )
    assert (ranking.asked, ranking.failures, ranking.warnings) == (0, {}, ())
    assert ranker.cost("query", items(texts)) == Cost(0, 0)


async def test_equal_ones_stay_as_they_were(kind: tuple[ItemRanker, Alone]) -> None:
    ranker, _ = kind
    number = 3 * BATCH + 1
    ranking = await ranker.rank("fair", items(["river", *["a stone"] * number, "river"]))
    equal = [position for position in ranking.order if 1 <= position <= number]

    assert equal == list(range(1, number + 1))
    assert len(set(ranking.scores or ())) == 2
    assert (await ranker.rank("fair", [])).order == ()


async def test_a_long_document_is_cut_and_the_end_of_the_prompt_stays(tiny_monot5: Path) -> None:
    """The longest beginning that fits is read; a long query leaves half of the room."""
    ranker = opened("monot5", tiny_monot5, length=10**6)
    alone = t5_alone(tiny_monot5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_monot5)
    words = ["river", "stone", "house"] * 200
    begin = " ".join(words[:60])
    while len(tokenizer(f"Query: fair Document: {begin} Relevant:")["input_ids"]) > LIMIT:
        begin = begin.rpartition(" ")[0]
    ranking = await ranker.rank("fair", items([" ".join(words)]))
    assert ranking.scores == pytest.approx([alone("fair", begin)], abs=1e-4)
    ranking_of_two = await ranker.rank("fair " * 100, items(["river", "stone"]))
    assert len(set(ranking_of_two.scores or ())) == 2, "the documents are read"


async def test_a_long_pair_of_monobert(tiny_monobert: Path) -> None:
    """The document is cut; so is a query that would leave it no room."""
    ranker = opened("monobert", tiny_monobert, length=10**6)
    long = await ranker.rank("fair", items(["river " * 500]))
    begin = "river " * (LIMIT - 3 - 1)
    assert long.scores == pytest.approx([bert_alone(tiny_monobert)("fair", begin)], abs=1e-4)
    ranking_of_both = await ranker.rank("fair " * 500, items(["river " * 500, "stone " * 500]))
    assert len(set(ranking_of_both.scores or ())) == 2


async def test_a_deadline_that_is_over_leaves_the_order(kind: tuple[ItemRanker, Alone]) -> None:
    ranker, _ = kind
    late = await ranker.rank("fair", items(WORDS), deadline=0)

    assert (late.order, late.failures) == (tuple(range(len(WORDS))), {"timeout": 1})
    assert (late.failed, late.scores) == (True, None)
    assert not (await ranker.rank("fair", items(WORDS), deadline=60)).failed


async def test_a_model_that_fails_is_counted(tiny_monot5: Path, tmp_path: Path) -> None:
    torn = without_vectors(tiny_monot5, tmp_path / "torn")

    ranking = await opened("monot5", torn).rank("fair", items(["river", "stone"]))

    assert (ranking.order, ranking.failures) == ((0, 1), {"unavailable": 1})
    assert f"monot5({torn}) failed" in ranking.warnings[0]


async def test_a_score_that_is_no_number_is_counted(tiny_monobert: Path, tmp_path: Path) -> None:
    weights = without_numbers(tiny_monobert, tmp_path / "nan")

    ranking = await opened("monobert", weights).rank("fair", items(["river", "stone"]))

    assert (ranking.order, ranking.failures) == ((0, 1), {"unavailable": 1})
    assert "not a number" in ranking.warnings[0]


async def test_weights_without_the_answers_are_refused(tmp_path: Path) -> None:
    text = TEXT.replace("true", "").replace("false", "")
    weights = save_t5(tmp_path / "t5", text)

    with pytest.raises(ModelUnavailableError, match="has no piece '▁false'"):
        await opened("monot5", weights).start()


async def test_weights_with_other_classes_are_refused(tmp_path: Path) -> None:
    weights = save_monobert(tmp_path / "bert", classes=3)

    with pytest.raises(ModelUnavailableError, match="has 3 classes"):
        await opened("monobert", weights).start()
