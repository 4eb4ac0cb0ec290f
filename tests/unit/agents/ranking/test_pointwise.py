"""monoT5 and monoBERT: tiny models of the same architectures, made and saved here."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.ranking.item_ranker import Cost, RankItem
from fairqr.agents.ranking.pointwise import (
    BATCH,
    MonoBertRanker,
    MonoT5Ranker,
    PointwiseRanker,
    open_pointwise,
)
from fairqr.agents.ranking.rankers import RankerOptions
from fairqr.base.errors import InputError, ModelUnavailableError
from tests.unit.agents.ranking.tiny_models import (
    LIMIT,
    save_monobert,
    save_monot5,
    tiny_monobert,
    tiny_monot5,
)

__all__ = ["tiny_monobert", "tiny_monot5"]

torch: Any = pytest.importorskip("torch", reason="needs the extra neural")
transformers: Any = pytest.importorskip("transformers", reason="needs the extra neural")

WORDS = ["fair", "ranking", "river", "merit", "Physicist", "true", "A", "of", "naïve", "日本", "🙂"]
KINDS = ("monot5", "monobert")
documents = st.lists(st.sampled_from(WORDS), max_size=30).map(" ".join)

Alone = Callable[[str, str], float]


def t5_alone(folder: Path) -> Alone:
    """Score one document with transformers alone, as the paper says."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    answers = [tokenizer.get_vocab()[piece] for piece in ("▁false", "▁true")]

    def score(query: str, document: str) -> float:
        inputs = tokenizer(f"Query: {query} Document: {document} Relevant:", return_tensors="pt")
        begin = torch.tensor([[model.config.decoder_start_token_id]])
        with torch.inference_mode():
            logits = model(input_ids=inputs["input_ids"], decoder_input_ids=begin).logits[0, 0]
        return float(logits[answers].double().log_softmax(0)[1])

    return score


def bert_alone(folder: Path) -> Alone:
    """Score one document with transformers alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()

    def score(query: str, document: str) -> float:
        inputs = tokenizer([query], [document], return_tensors="pt")
        with torch.inference_mode():
            return float(model(**inputs).logits[0].double().log_softmax(0)[1])

    return score


@pytest.fixture(scope="module", params=KINDS)
def kind(
    request: pytest.FixtureRequest, tiny_monot5: Path, tiny_monobert: Path
) -> tuple[PointwiseRanker, Alone]:
    """A ranker, and the plain way to its scores."""
    if request.param == "monot5":
        return MonoT5Ranker(str(tiny_monot5)), t5_alone(tiny_monot5)
    return MonoBertRanker(str(tiny_monobert)), bert_alone(tiny_monobert)


def items(texts: Sequence[str]) -> list[RankItem]:
    return [RankItem(str(place), "", text) for place, text in enumerate(texts)]


class TestScores:
    async def test_they_are_those_of_each_document_alone(
        self, kind: tuple[PointwiseRanker, Alone]
    ) -> None:
        """Of many lengths at once: padding and company change nothing; the best is first."""
        ranker, alone = kind
        texts = [" ".join(WORDS[place % 7 : place % 7 + place % 6]) for place in range(BATCH + 9)]
        ranking = await ranker.rank("a fair query", items(texts))
        assert ranking.scores == pytest.approx(
            [alone("a fair query", text) for text in texts], abs=1e-4
        )
        scores = ranking.scores or ()
        assert list(ranking.order) == sorted(range(len(texts)), key=lambda it: (-scores[it], it))
        assert (ranking.asked, ranking.failures, ranking.warnings) == (0, {}, ())
        assert all(score < 0 for score in scores)

    @settings(max_examples=20)
    @given(texts=st.lists(documents, min_size=1, max_size=6), query=documents)
    async def test_any_texts_are_ranked(
        self, kind: tuple[PointwiseRanker, Alone], texts: list[str], query: str
    ) -> None:
        """Empty ones, any script, longer ones than the model reads; again and again the same."""
        ranker, _ = kind
        ranking = await ranker.rank(query, items(texts))
        assert sorted(ranking.order) == list(range(len(texts)))
        assert not ranking.failed
        assert len(ranking.scores or ()) == len(texts)
        turned = await ranker.rank(query, items(texts[::-1]))
        assert turned.scores == (ranking.scores or ())[::-1]

    async def test_edges(self, kind: tuple[PointwiseRanker, Alone]) -> None:
        ranker, alone = kind
        assert (await ranker.rank("fair", [])).order == ()
        one = await ranker.rank("fair", items(["merit"]))
        assert (one.order, one.scores) == ((0,), pytest.approx((alone("fair", "merit"),), abs=1e-4))
        blank = await ranker.rank("fair", items(["", " \n "]))
        assert blank.order == (0, 1)
        assert blank.scores == pytest.approx([alone("fair", "")] * 2, abs=1e-4)
        broken = await ranker.rank("half \ud83d pair", items(["\udc00 river", "river"]))
        assert len(broken.order) == 2

    async def test_the_group_stands_before_the_query(
        self, kind: tuple[PointwiseRanker, Alone]
    ) -> None:
        ranker, alone = kind
        asked = await ranker.rank("physicist", items(["river"]), group="female")
        assert asked.scores == pytest.approx([alone("female physicist", "river")], abs=1e-4)
        neutral = await ranker.rank("physicist", items(["river"]))
        assert neutral.scores == pytest.approx([alone("physicist", "river")], abs=1e-4)

    async def test_equal_ones_stay_as_they_were(self, kind: tuple[PointwiseRanker, Alone]) -> None:
        ranker, _ = kind
        number = 3 * BATCH + 1
        ranking = await ranker.rank("fair", items(["river", *["a stone"] * number, "river"]))
        same = [place for place in ranking.order if 1 <= place <= number]
        assert same == list(range(1, number + 1))
        assert len(set(ranking.scores or ())) == 2

    async def test_what_is_read_of_an_item(self, tiny_monot5: Path) -> None:
        alone = t5_alone(tiny_monot5)
        both = [RankItem("1", "fair", "river merit")]
        for shown, text in (("title", "fair"), ("text", "river merit"), (None, "fair river merit")):
            options = RankerOptions(shown=shown, weights=str(tiny_monot5))  # type: ignore[arg-type]
            ranking = await open_pointwise("monot5", options).rank("query", both)
            assert ranking.scores == pytest.approx([alone("query", text)], abs=1e-4)
        options = RankerOptions(weights=str(tiny_monot5), length=4)
        ranking = await open_pointwise("monot5", options).rank("query", both)
        assert ranking.scores == pytest.approx([alone("query", "fair")], abs=1e-4)

    async def test_a_long_document_is_cut_and_the_end_of_the_prompt_stays(
        self, tiny_monot5: Path
    ) -> None:
        """The longest begin that fits is what is read; a long query leaves half of the room."""
        ranker, alone = MonoT5Ranker(str(tiny_monot5), length=10**6), t5_alone(tiny_monot5)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_monot5)
        words = ["river", "stone", "house"] * 200
        fits = [
            " ".join(words[:number])
            for number in range(60)
            if len(
                tokenizer(f"Query: fair Document: {' '.join(words[:number])} Relevant:")[
                    "input_ids"
                ]
            )
            <= LIMIT
        ]
        ranking = await ranker.rank("fair", items([" ".join(words)]))
        assert ranking.scores == pytest.approx([alone("fair", fits[-1])], abs=1e-4)
        other = await ranker.rank("fair " * 100, items(["river", "stone"]))
        assert other.scores is not None
        assert other.scores[0] != other.scores[1], "the documents are read"

    async def test_a_long_pair_of_monobert(self, tiny_monobert: Path) -> None:
        """The document is cut; so is a query that would leave it no room."""
        ranker, alone = MonoBertRanker(str(tiny_monobert), length=10**6), bert_alone(tiny_monobert)
        long = await ranker.rank("fair", items(["river " * 500]))
        begin = "river " * (LIMIT - 3 - 1)
        assert long.scores == pytest.approx([alone("fair", begin)], abs=1e-4)
        both = await ranker.rank("fair " * 500, items(["river " * 500, "stone " * 500]))
        assert both.scores is not None
        assert both.scores[0] != both.scores[1]


class TestFailures:
    async def test_a_deadline_is_looked_at_between_batches(
        self, kind: tuple[PointwiseRanker, Alone]
    ) -> None:
        """The order is then as it was, and says so."""
        ranker, _ = kind
        await ranker.start()
        late = await ranker.rank("fair", items(WORDS), deadline=0)
        assert late.order == tuple(range(len(WORDS)))
        assert late.failed
        assert late.failures == {"timeout": 1}
        assert (
            f"No time was left to ask the model {ranker.name}: it had scored 0 of 11."
            in late.warnings[0]
        )
        assert late.scores is None
        assert not (await ranker.rank("fair", items(WORDS), deadline=60)).failed

    async def test_many_queries_at_once(self, kind: tuple[PointwiseRanker, Alone]) -> None:
        ranker, _ = kind
        alone = [await ranker.rank(word, items(WORDS)) for word in WORDS[:5]]
        together = await asyncio.gather(*(ranker.rank(word, items(WORDS)) for word in WORDS[:5]))
        assert together == alone

    async def test_a_model_that_fails_is_counted(self, tiny_monot5: Path, tmp_path: Path) -> None:
        """Here the tokenizer has pieces that the model has no vectors for."""
        folder = tmp_path / "torn"
        shutil.copytree(tiny_monot5, folder)
        config = transformers.AutoConfig.from_pretrained(tiny_monot5)
        config.vocab_size = 10
        transformers.T5ForConditionalGeneration(config).save_pretrained(folder)
        ranking = await MonoT5Ranker(str(folder)).rank("fair", items(["river", "stone"]))
        assert (ranking.order, ranking.failures) == ((0, 1), {"unavailable": 1})
        assert f"monot5({folder}) failed" in ranking.warnings[0]

    async def test_a_score_that_is_no_number_is_no_order(
        self, tiny_monobert: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "broken"
        shutil.copytree(tiny_monobert, folder)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(tiny_monobert)
        with torch.no_grad():
            model.classifier.bias.fill_(float("nan"))
        model.save_pretrained(folder)
        ranking = await MonoBertRanker(str(folder)).rank("fair", items(["river", "stone"]))
        assert ranking.failed
        assert "not a number" in ranking.warnings[0]

    async def test_what_a_user_can_mend_is_one_sentence(self, tmp_path: Path) -> None:
        t5 = save_monot5(tmp_path / "t5", pieces_left_out=True)
        with pytest.raises(ModelUnavailableError, match="has no piece '▁false'"):
            await MonoT5Ranker(str(t5)).start()
        bert = save_monobert(tmp_path / "bert", classes=3)
        with pytest.raises(ModelUnavailableError, match="has 3 classes"):
            await MonoBertRanker(str(bert)).start()
        with pytest.raises(ModelUnavailableError, match="cannot be loaded"):
            await MonoBertRanker(str(tmp_path / "none")).rank("fair", items(["a"]))
        with pytest.raises(InputError, match="At least 1 character"):
            MonoT5Ranker(length=0)
        with pytest.raises(InputError, match="choose monot5 or monobert"):
            open_pointwise("bm25", RankerOptions())


def test_names_and_costs() -> None:
    """Nothing is loaded for them; the defaults are the authors' own models."""
    t5 = open_pointwise("monot5", RankerOptions())
    bert = open_pointwise("monobert", RankerOptions())
    assert t5.name == "monot5(castorini/monot5-base-msmarco)"
    assert bert.name == "monobert(castorini/monobert-large-msmarco)"
    assert t5.cost("query", items(["a"] * 200)) == Cost(0, 0)
