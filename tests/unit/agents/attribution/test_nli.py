"""Attribution by NLI models of transformers: real models, tiny, made and saved here."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.agents.attribution.attributor import AttributorName, Entailment, Pair
from fairqr.agents.attribution.nli import OVERLAP, TransformersAttributor, windows_of
from fairqr.base.errors import ModelUnavailableError
from tests.later import later
from tests.unit.agents.attribution.tiny_nli import WORDS, relabelled
from tests.unit.agents.ranking.tiny_models import LIMIT, loaded, without_numbers

torch = later("torch", "neural")
transformers = later("transformers", "neural")

texts = st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=150).map(" ".join)
answers = st.lists(st.sampled_from(WORDS.split()), min_size=1, max_size=20).map(" ".join)
LONG = "the river was seen near a new road they said " * 9
EASY = [
    Pair("the gold river", "a tree"),
    Pair("the river", "a gold tree"),
    Pair("the mud river was near", "a tree"),
    Pair(f"{LONG} gold {LONG}", "the house"),
    Pair(f"mud {LONG} mud".replace("river", "mud"), "the house"),
]
EXPECTED = [True, False, False, True, False]


def attributor(folder: Path, **options: Any) -> TransformersAttributor:
    return TransformersAttributor(AttributorName(kind="transformers", model=str(folder), **options))


@pytest.fixture(scope="module")
def parts(tiny_nli: Path) -> tuple[Any, Any]:
    """The tokenizer and the model, loaded without our code."""
    return loaded(tiny_nli, "AutoModelForSequenceClassification")


def by_hand(tokenizer: Any, model: Any, pair: Pair) -> tuple[float, bool]:
    """The greatest probability of all windows, one at a time."""
    windows = windows_of(pair, tokenizer, LIMIT)
    assert not isinstance(windows, Entailment)
    every: list[list[float]] = []
    for window in windows:
        inputs = {name: torch.tensor([held]) for name, held in window.items()}
        with torch.no_grad():
            every.append(model(**inputs).logits[0].double().softmax(0).tolist())
    return max(it[2] for it in every), any(it[2] > max(it[:2]) for it in every)


@settings(max_examples=25)
@given(premise=texts, answer=answers)
async def test_the_best_window_counts(
    tiny_nli: Path, parts: tuple[Any, Any], premise: str, answer: str
) -> None:
    """The score is the greatest of all windows; used is what any window's top label says."""
    (verdict,) = await attributor(tiny_nli).judge([Pair(premise, answer)])
    score, top = by_hand(*parts, Pair(premise, answer))
    assert verdict.score == pytest.approx(score, abs=1e-5)
    assert verdict.attributed == top or abs(score - 0.5) < 1e-4


async def test_a_batch_gives_what_each_pair_alone_gives(tiny_nli: Path) -> None:
    """Neither the order, nor the company, nor padding changes a verdict."""
    stream = np.random.default_rng(3)
    pairs = [
        Pair(*(" ".join(stream.choice(WORDS.split(), stream.integers(1, n))) for n in (150, 12)))
        for _ in range(40)
    ]
    judge = attributor(tiny_nli)
    together = await judge.judge(pairs)
    alone = [(await judge.judge([pair]))[0] for pair in pairs]
    back = (await judge.judge(pairs[::-1]))[::-1]
    for others in (alone, back):
        assert [v.attributed for v in together] == [v.attributed for v in others]
        assert [v.score for v in together] == pytest.approx([v.score for v in others], abs=1e-5)
    assert len({verdict.attributed for verdict in together}) == 2
    # A threshold takes the place of the top label; equal counts as used.
    score = together[0].score or 0.0
    for threshold, used in ((score, True), (min(1.0, score + 1e-3), False)):
        (verdict,) = await attributor(tiny_nli, threshold=threshold).judge(pairs[:1])
        assert (verdict.score, verdict.attributed) == (pytest.approx(score), used)


async def test_nothing_to_judge_is_a_status_of_its_own(tiny_nli: Path) -> None:
    """Empty texts, an answer that fills the model; the other pairs are judged all the same."""
    pairs = [Pair("gold", " …! "), Pair("—", "a tree"), Pair("a river", "house " * 70)]
    *verdicts, good = await attributor(tiny_nli).judge([*pairs, EASY[0]])
    statuses = ["empty_answer", "empty_document", "answer_too_long"]
    assert [verdict.status for verdict in verdicts] == statuses
    assert all(verdict.attributed is None and verdict.message for verdict in verdicts)
    assert good.status == "ok"


@pytest.mark.promise("agents")
@settings(max_examples=50)
@given(premise=texts, answer=answers)
def test_every_token_is_in_a_window_beside_the_whole_answer(
    parts: tuple[Any, Any], premise: str, answer: str
) -> None:
    """Judges read long documents whole, in overlapping windows beside the whole answer.

    None is longer than the model takes, and neighbours share what they should.
    """
    tokenizer, _ = parts
    cut = windows_of(Pair(premise, answer), tokenizer, LIMIT)
    assert not isinstance(cut, Entailment)
    document = tokenizer.encode(premise, add_special_tokens=False)
    said = tokenizer.encode(answer, add_special_tokens=False)
    bodies = [list(window["input_ids"][1 : -len(said) - 2]) for window in cut]
    begin, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    whole = [[begin, *body, end, *said, end] for body in bodies]
    assert [list(window["input_ids"]) for window in cut] == whole
    assert all(len(window["input_ids"]) <= LIMIT for window in cut)
    shared = min(OVERLAP, (LIMIT - len(said) - 3) // 2)
    joined = bodies[0]
    for body in bodies[1:]:
        assert joined[-shared:] == body[:shared]
        joined = joined + body[shared:]
    assert joined == document


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ((2, 1, 0), ("entailment", "neutral", "contradiction")),
        ((0, 2, 1), ("CONTRADICTION", "ENTAILED", "NEUTRAL")),
    ],
)
async def test_the_order_of_the_labels_does_not_matter(
    tiny_nli: Path, tmp_path: Path, order: tuple[int, ...], names: tuple[str, ...]
) -> None:
    """It is read from the configuration; a check of other weights is not of these."""
    other = relabelled(tiny_nli, tmp_path / "other", order, names)
    plain, turned = attributor(tiny_nli), attributor(other)
    one, two = await plain.judge(EASY), await turned.judge(EASY)
    assert [v.attributed for v in one] == [v.attributed for v in two] == EXPECTED
    assert [v.score for v in one] == pytest.approx([v.score for v in two], abs=1e-6)
    weights = [it.identity.removeprefix(it.name) for it in (plain, turned)]
    assert weights[0] != weights[1]


async def test_labels_without_names_are_refused(tiny_nli: Path, tmp_path: Path) -> None:
    """A guess would turn verdicts round without anybody seeing it."""
    names = ("LABEL_0", "LABEL_1", "LABEL_2")
    unclear = relabelled(tiny_nli, tmp_path / "unclear", (1, 2, 0), names)
    with pytest.raises(ModelUnavailableError, match="0=LABEL_0, 1=LABEL_1, 2=LABEL_2"):
        await attributor(unclear).start()


async def test_what_the_model_does_wrong_is_a_status(tiny_nli: Path, tmp_path: Path) -> None:
    """No number, and a token that it does not have; the other pairs are judged all the same."""
    sick = attributor(without_numbers(tiny_nli, tmp_path / "sick"))
    (verdict,) = await sick.judge(EASY[:1])
    assert (verdict.status, verdict.score) == ("parse_error", None)
    foreign = tmp_path / "foreign"
    shutil.copytree(tiny_nli, foreign)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_nli)
    tokenizer.add_tokens(["platypus"])
    tokenizer.save_pretrained(foreign)
    bad, good = await attributor(foreign).judge([Pair("platypus", "a tree"), EASY[0]])
    assert (bad.status, good.status, good.attributed) == ("unavailable", "ok", True)
    assert "failed" in bad.message
