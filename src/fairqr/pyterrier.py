"""Fair search and fair re-ranking as PyTerrier transformers; they need no Terrier jar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pyterrier as pt
from langchain_core.documents import Document as Passage

from fairqr.api import FairSearch, Named
from fairqr.base.errors import InputError
from fairqr.base.loops import run_blocking
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.inputs import as_groups
from fairqr.graph.search.context import Context
from fairqr.parts import FairReranker
from fairqr.retrieval.engines.engine import SearchEngine

COLUMNS = ["qid", "query", "docno", "score", "rank"]


class FairRetriever(pt.Transformer):
    """Searches fairly for each query: from the columns qid and query to a ranking.

    Args:
        source: What to search, or your own :class:`fairqr.FairSearch`, which you close yourself.
        model: The model that refines queries, as :class:`fairqr.FairSearch` takes it.
        context: The options of each search.
    """

    def __init__(
        self,
        source: FairSearch | SearchEngine | Named,
        model: Any = None,
        *,
        context: Context | None = None,
    ) -> None:
        if not isinstance(source, FairSearch):
            source = FairSearch(source, model)
        self._search = source
        self._context = context

    def transform(self, topics: pd.DataFrame) -> pd.DataFrame:
        """Return a ranking for each query, except for queries that no document matches."""
        pt.validate.query_frame(topics, ["query"])
        rankings = []
        for qid, query in zip(topics["qid"], topics["query"], strict=True):
            result = run_blocking(self._search.search(query, self._context))
            docnos = [document.id for document in result.ranking]
            rankings.append((qid, query, docnos))
        return _as_frame(rankings)


class FairRerank(pt.Transformer):
    """Re-ranks the results of the pipeline before it: the most relevant fair list of them.

    Args:
        groups: The groups of the documents, as :func:`fairqr.evaluate` takes them. With a corpus or
            a source, we look up the documents of each ranking in it.
        context: The options; ``k`` is how many documents to keep, all by default.
    """

    def __init__(self, groups: Any, *, context: Context | None = None) -> None:
        self._groups = groups
        self._context = context

    def transform(self, results: pd.DataFrame) -> pd.DataFrame:
        """Return the rankings in their fair order, keeping their other columns."""
        pt.validate.columns(results, includes=["qid", "docno", "score"])
        results = results.assign(docno=results["docno"].astype(str))
        groups = as_groups(self._groups, set(results["docno"]))
        if groups is None:
            raise InputError("FairRerank needs the groups of the documents.")
        if "query" not in results:
            results["query"] = ""

        # Equal scores keep their order.
        ordered = results.sort_values(["qid", "score"], ascending=[True, False], kind="stable")
        rankings = []
        for qid, rows in ordered.groupby("qid", sort=False):
            docnos = self._rerank(rows["docno"].tolist(), groups)
            rankings.append((qid, rows["query"].iloc[0], docnos))
        keys = ["qid", "docno"]
        other_columns = results.drop(columns=["query", "score", "rank"], errors="ignore")
        return _as_frame(rankings).merge(other_columns.drop_duplicates(keys), on=keys)

    def _rerank(self, docnos: Sequence[str], groups: Groups) -> list[str]:
        """Return documents in their fair order."""
        passages = [Passage(docno) for docno in docnos]
        for name, attribute in groups.schema.attributes.items():
            rows = groups.memberships(name, docnos, "exclude").tolist()
            for passage, row in zip(passages, rows, strict=True):
                label = dict(zip(attribute.groups, row, strict=True))
                passage.metadata[attribute.field or name] = label
        context = self._context or Context(k=len(docnos))
        reranker = FairReranker(labels=groups.schema, context=context)
        return [passage.page_content for passage in reranker.compress_documents(passages, "")]


def _as_frame(rankings: Sequence[tuple[str, str, Sequence[str]]]) -> pd.DataFrame:
    """Return a data frame; scores only express the order."""
    rows = []
    for qid, query, docnos in rankings:
        for rank, docno in enumerate(docnos):
            score = float(len(docnos) - rank)
            rows.append((qid, query, docno, score, rank))
    return pd.DataFrame(rows, columns=COLUMNS)
