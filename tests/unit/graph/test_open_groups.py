"""Groups that nobody lists: each value that a search finds is one, and the others are ``other``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document as LangChainDocument

from fairqr import AnswerContext, AnswerSettings, Context, FairReranker, FairSearch, SearchResult
from fairqr.agents.refiners.feedback import FeedbackRefiner
from fairqr.agents.refiners.refiner import GroupRequest
from fairqr.base.errors import FairqrError, SchemaError, TargetError
from fairqr.retrieval.fairness.exposure import LOG2
from fairqr.retrieval.fairness.relevance import probability_by_rank
from fairqr.retrieval.sources.schema import OTHER, load_schema
from tests.golden.record import EchoingGenerator
from tests.unit.graph.corpora import KnownRefiner, indexed

OPEN = "attributes: {seller: {field: seller, groups: any}}"
SELLERS = 12


def shoes(count: int = 90) -> Iterator[dict[str, Any]]:
    """Yield shoes of sellers, some of several sellers, some of none; most are of the first."""
    random = np.random.default_rng(7)
    shares = 1 / np.arange(1, SELLERS + 1)
    for number in range(count):
        sellers = random.choice(SELLERS, p=shares / shares.sum(), size=1 + number % 2)
        names = [f"shop {seller}" for seller in sellers.tolist()]
        text = "shoe " * int(random.integers(1, 6)) + "filler " * int(random.integers(0, 30))
        label = None if number % 11 == 0 else names
        yield {"id": f"s{number:03}", "title": "A shoe", "text": text, "seller": label}


def listed() -> str:
    """Return the schema that lists the same groups."""
    groups = ", ".join(f"shop {seller}" for seller in range(SELLERS))
    return f"attributes: {{seller: {{field: seller, groups: [{groups}]}}}}"


async def search_shoes(
    folder: Path, schema: str, refiner: Any = None, documents: Any = None, **options: Any
) -> SearchResult:
    folder.mkdir(exist_ok=True)
    engine = await indexed(folder, documents or shoes(), schema)
    async with FairSearch(engine, refiner) as search:
        return await search.search("shoe", Context(k=10, **options))


def shares_above_zero(shares: Mapping[str, float]) -> dict[str, float]:
    return {group: share for group, share in shares.items() if share > 0}


@pytest.mark.parametrize("target", [None, "merit:1", "uniform:1", "merit:0.5,retrieved:0.5"])
async def test_found_groups_give_the_same_search_as_listed_ones(
    tmp_path: Path, target: str | None
) -> None:
    opened = await search_shoes(tmp_path / "open", OPEN, target=target, ask="never")
    closed = await search_shoes(tmp_path / "listed", listed(), target=target, ask="never")
    assert set(closed.target["seller"]) | {OTHER} == set(opened.target["seller"])
    assert [it.id for it in opened.ranking] == [it.id for it in closed.ranking]
    assert [it.groups for it in opened.ranking] == [it.groups for it in closed.ranking]
    for field in ("target", "exposure"):
        shares = shares_above_zero(getattr(opened, field)["seller"])
        assert shares == pytest.approx(shares_above_zero(getattr(closed, field)["seller"]))
    assert opened.unknown == pytest.approx(closed.unknown)
    # The smoothing of KL counts one group more.
    assert opened.divergence == pytest.approx(closed.divergence, abs=2e-3)


async def test_merit_is_a_share_of_the_estimated_relevance(tmp_path: Path) -> None:
    documents = [
        {"id": f"s{number}", "text": "shoe " + "filler " * number, "seller": seller}
        for number, seller in enumerate(["a", "b", ["a", "c"], "b", "c"])
    ]
    result = await search_shoes(tmp_path, OPEN, documents=documents, target="merit:1", ask="never")
    # BM25 alone estimates nothing, so ranks tell.
    probabilities = probability_by_rank(len(documents)).tolist()
    merits = dict.fromkeys("abc", 0.0)
    for place, probability in zip(result.baseline.ranking, probabilities, strict=True):
        for seller, share in place.groups["seller"].items():
            merits[seller] += probability * share
    total = sum(merits.values())
    expected = {seller: merit / total for seller, merit in merits.items()}
    assert shares_above_zero(result.target["seller"]) == pytest.approx(expected)


async def test_what_only_later_queries_find_is_other(tmp_path: Path) -> None:
    documents = [
        {"id": f"s{number:02}", "text": "shoe " * (1 + number % 3), "seller": f"shop {number % 2}"}
        for number in range(20)
    ]
    documents += [{"id": f"n{it}", "text": "sneaker", "seller": "new"} for it in range(5)]
    refiner = KnownRefiner(["sneaker"])
    options: dict[str, Any] = {"ask": "always", "max_iterations": 1, "method": "fair-qr"}
    options |= {"target": "uniform:1", "rerank": "none", "groups": "all"}
    result = await search_shoes(tmp_path, OPEN, refiner, documents, **options)
    assert set(result.target["seller"]) == {"shop 0", "shop 1", OTHER}
    assert result.target["seller"][OTHER] == 0, "uniform is a share of the groups found"
    assert {request.group for request in refiner.asked} <= {"shop 0", "shop 1"}
    last = result.iterations[-1]
    weights = LOG2.weights(len(last.ids))
    is_new = np.array([id_.startswith("n") for id_ in last.ids])
    expected = weights[is_new].sum() / weights.sum()
    assert last.exposure["seller"][OTHER] == pytest.approx(expected)


async def test_groups_of_too_few_documents_are_other_together(tmp_path: Path) -> None:
    schema = "attributes: {seller: {field: seller, groups: any, at_least: 5}}"
    result = await search_shoes(tmp_path, schema, target="retrieved:1", ask="never")
    counts = dict.fromkeys(range(SELLERS), 0)
    for shoe in shoes():
        for name in set(shoe["seller"] or ()):
            counts[int(name.removeprefix("shop "))] += 1
    large = {f"shop {seller}" for seller, count in counts.items() if count >= 5}
    assert 0 < len(large) < SELLERS
    assert set(result.target["seller"]) == large | {OTHER}
    assert result.target["seller"][OTHER] > 0


async def test_the_labels_of_a_file_may_have_any_groups(tmp_path: Path) -> None:
    rows = ["id,group,weight"]
    for shoe in shoes():
        for name in dict.fromkeys(shoe["seller"] or ()):
            rows.append(f"{shoe['id']},{name},2")
    results = []
    for name, groups in (("open", "groups: any, "), ("listed", "")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "labels.csv").write_text("\n".join(rows))
        schema = f"attributes: {{seller: {{{groups}labels: labels.csv}}}}"
        results.append(await search_shoes(folder, schema, target="merit:1", ask="never"))
    opened, closed = results
    assert [it.id for it in opened.ranking] == [it.id for it in closed.ranking]
    assert [it.groups for it in opened.ranking] == [it.groups for it in closed.ranking]


def test_a_re_ranker_takes_any_groups(tmp_path: Path) -> None:
    (tmp_path / "open.yaml").write_text(OPEN)
    (tmp_path / "listed.yaml").write_text(listed())
    documents = [
        LangChainDocument(page_content=shoe["text"], metadata={"seller": shoe["seller"]})
        for shoe in shoes(40)
    ]
    orders = []
    for name in ("open.yaml", "listed.yaml"):
        reranker = FairReranker(labels=tmp_path / name, context=Context(k=10, target="merit:1"))
        with pytest.warns(UserWarning, match="More groups have a target than there are ranks"):
            orders.append(reranker.compress_documents(documents, "shoe"))
    assert orders[0] == orders[1] != documents[:10]


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("acme", {"acme": 1}),
        (["acme", "bolt", "acme"], {"acme": 0.5, "bolt": 0.5}),
        ({"acme": 3, "bolt": 1}, {"acme": 0.75, "bolt": 0.25}),
        ({"acme": 1, "unknown": 1}, {"acme": 0.5}),
        ([3, 3.0, "3.0"], {"3": 1}),
        ("unknown", {}),
        (None, {}),
        ("", {}),
        ([], {}),
    ],
    ids=[
        "value",
        "list",
        "weights",
        "unknown part",
        "numbers",
        "unknown",
        "none",
        "blank",
        "empty",
    ],
)
def test_each_value_of_a_label_is_a_group(tmp_path: Path, label: Any, expected: Any) -> None:
    (tmp_path / "schema.yaml").write_text(OPEN)
    attribute = load_schema(tmp_path / "schema.yaml").attribute("seller")
    assert attribute.named_shares(label) == pytest.approx(expected)
    assert attribute.named_shares(json.loads(json.dumps(label))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("population: {a: 1}", "takes neither a population"),
        ("unknown: group", "needs 'unknown: exclude'"),
        ("values: {a: [b]}", "each group needs its values"),
        ("at_least: 0", "at_least"),
    ],
    ids=["population", "unknown", "values", "at_least"],
)
def test_what_needs_listed_groups_is_refused(tmp_path: Path, more: str, sentence: str) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(f"attributes: {{seller: {{field: seller, groups: any, {more}}}}}")
    with pytest.raises(SchemaError, match=sentence):
        load_schema(path)


async def test_shares_of_groups_that_nobody_lists_cannot_be_aimed_at(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="aim at merit, uniform or retrieved"):
        await search_shoes(tmp_path, OPEN, target="seller=shop 1:1", ask="never")


async def test_what_needs_listed_groups_says_so(tmp_path: Path) -> None:
    engine = await indexed(tmp_path, shoes(), OPEN)
    with pytest.raises(FairqrError, match="needs groups that are listed"):
        _ = engine.schema.attribute("seller").universe
    assert not await engine.corpus_shares(), "what has no groups has no shares"


async def answered_shares(folder: Path, schema: str) -> dict[str, tuple[Any, Any]]:
    """Answer from shoes; return what was read and used of each group."""
    folder.mkdir()
    engine = await indexed(folder, shoes(), schema)
    async with FairSearch(engine, None, generator=EchoingGenerator()) as search:
        context = AnswerContext(k=10, seed=1, answer=AnswerSettings(samples=3))
        result = await search.answer("shoe", context)
    return {
        group.group: (group.exposure, group.attributed)
        for group in result.groups[0].groups
        if group.exposure
    }


async def test_an_answer_says_whose_texts_were_read_and_used(tmp_path: Path) -> None:
    opened = await answered_shares(tmp_path / "open", OPEN)
    closed = await answered_shares(tmp_path / "listed", listed())

    assert opened == pytest.approx(closed)
    assert opened


@pytest.mark.parametrize("intersect", [False, True])
async def test_words_are_learnt_from_the_documents_of_a_group(
    tmp_path: Path, intersect: bool
) -> None:
    """The refiner that reads documents takes them by the values of their field."""
    documents = [
        {"id": f"s{number:02}", "text": f"shoe {word} filler", "seller": word, "kind": kind}
        for number, (word, kind) in enumerate([("boots", "a"), ("sandals", "b")] * 12)
    ]
    kinds = "kind: {field: kind, groups: [a, b]}"
    schema = f"attributes: {{seller: {{field: seller, groups: any}}, {kinds}}}"
    engine = await indexed(tmp_path, documents, schema)
    refiner = FeedbackRefiner(engine)
    attribute, group = ("seller×kind", "boots × a") if intersect else ("seller", "boots")
    request = GroupRequest(query="shoe", attribute=attribute, group=group, keywords=[], seed=0)
    refinement = await refiner.refine(request)
    assert refinement.keywords[:1] == ("boots",)


async def test_a_product_with_an_open_attribute_has_found_groups(
    tmp_path: Path,
) -> None:
    documents = [{**shoe, "kind": "ab"[number % 2]} for number, shoe in enumerate(shoes())]
    schema = OPEN.removesuffix("}") + ", kind: {field: kind, groups: [a, b]}}"
    result = await search_shoes(
        tmp_path, schema, documents=documents, intersect=True, target="merit:1", ask="never"
    )
    (target,) = result.target.values()
    assert "shop 0 × a" in target
    assert f"{OTHER} × b" in target
    assert sum(target.values()) == pytest.approx(1)
    assert len({place.id for place in result.ranking}) == 10
