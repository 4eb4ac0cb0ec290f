"""Which documents are useful, as a collection's judgements or somebody else's file says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.rag.answering import Part, Task, record_of, singles
from fairqr.evaluation.rag.collection import RagQuery
from fairqr.evaluation.rag.specification import LABELS
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord

COLUMNS = {"qid": str, "pid": str, "relevance_label": float}
"""The columns of a table of labels, with the types of their values."""

NAMES = {"generator": str, "collection": str}
"""The columns that it may have, too."""


def judged_labels(tasks: Sequence[Task]) -> list[PolicyRecord]:
    """Return labels from the judgements of a collection: what is relevant is useful to anybody.

    Raises:
        InputError: Nobody judged the documents of a collection.
    """
    labels = []
    for part, query in tasks:
        if query.judged is None:
            raise InputError(
                f"Nobody judged the documents of '{part.collection}', and the experiment has no "
                "generator; name labels with --labels, or a generator that makes them."
            )
        labels.append(given_label(part, query, dict.fromkeys(query.judged, 1.0), otherwise=0.0))
    return labels


def given_label(
    part: Part, query: RagQuery, labels: Mapping[str, float], *, otherwise: float | None
) -> PolicyRecord:
    """Return the labels of a query as somebody else gave them.

    Args:
        part: Whom documents are useful to.
        query: The question with its pool.
        labels: The labels by the ids of documents, 1 or 0.
        otherwise: The label of other documents; None if they have none.
    """
    utilities = [0.0, *(labels.get(document.id, otherwise) for document in query.pool)]
    answers = [
        AnswerRecord(ranking=ranking, status="given", utility=utility)
        for ranking, utility in zip(singles(query), utilities, strict=True)
    ]
    return record_of(part, LABELS, query, answers=answers)


def read_labels(path: Path, tasks: Sequence[Task]) -> list[PolicyRecord]:
    """Read which documents are useful, as somebody else found it.

    Args:
        path: A table as the authors of "Towards Fair RAG" released it: tab-separated, with the
            columns ``qid``, ``pid`` and ``relevance_label``, 1 or 0. They left out queries with
            fewer than two useful documents, so a query that is not in it has none. The optional
            columns ``generator`` and ``collection`` say whose and of what they are; without them,
            the table is of all generators, or all collections, that there are.
        tasks: What needs labels; of several generators or collections only if the table names them.

    Raises:
        InputError: There is nothing of these, or the table does not say of which they are.
    """
    import pandas as pd

    try:
        table = pd.read_csv(path, sep="\t", dtype=COLUMNS | NAMES).astype({"qid": str})
        table = table[[*COLUMNS, *(name for name in NAMES if name in table)]]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} holds no labels: {one_line(error)}.") from None
    for name in NAMES:
        names = {getattr(part, name) for part, _ in tasks}
        if name in table:
            in_table = set(table[name])
            tasks = [task for task in tasks if getattr(task[0], name) in in_table]
        elif len(names) > 1:
            raise InputError(f"{path} is of one {name}; name one, or add a column '{name}'.")
        else:
            table[name] = next(iter(names))
    labels_of: dict[object, dict[str, float]] = {}
    for key, rows in table.groupby(["generator", "collection", "qid"]):
        labels_of[key] = dict(zip(rows.pid, rows.relevance_label, strict=True))
    keys = [(part.generator, part.collection, query.id) for part, query in tasks]
    if labels_of.keys().isdisjoint(keys):
        raise InputError(f"The labels in {path} are of another collection.")
    records = []
    for (part, query), key in zip(tasks, keys, strict=True):
        labels = labels_of.get(key)
        if labels is None:
            records.append(given_label(part, query, {}, otherwise=0.0))
        else:
            records.append(given_label(part, query, labels, otherwise=None))
    return records
