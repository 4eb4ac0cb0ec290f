"""LaMP's own measures of the deterministic rankings' answers, as others report them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fairqr.evaluation.lamp.metrics import Accuracy, FourMinusError, Rouge
from fairqr.evaluation.lamp.official import official_metrics
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.measures.utility_bounds import is_answer
from fairqr.evaluation.rag.records import PolicyRecord

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["official_of_deterministic"]

_LAMP = (Accuracy, FourMinusError, Rouge)


def official_of_deterministic(
    records: Sequence[PolicyRecord], collections: Mapping[str, RagCollection]
) -> DataFrame:
    """Return the measures of each retriever's one ranking with each generator.

    Collections with a utility that is none of LaMP's are left out. A deterministic ranking is the
    same under every seed, so that each query counts once, by the first seed with an answer.

    Args:
        records: Of all policies.
        collections: By name; for the golds.

    Returns:
        By collection, generator and retriever: over how many ``answers`` they are, how many
        generations ``failed`` and are left out, and the measures of
        :func:`fairqr.evaluation.lamp.official.official_metrics` by name.
    """
    import pandas as pd

    keys = ("collection", "generator", "retriever")
    found: dict[tuple[str, ...], dict[str, PolicyRecord]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        utility = collections[record.collection].task.utility
        if record.policy == "deterministic" and record.answers and isinstance(utility, _LAMP):
            rows = found.setdefault(tuple(getattr(record, name) for name in keys), {})
            if record.query not in rows or not is_answer(rows[record.query].answers[0]):
                rows[record.query] = record
    return pd.DataFrame(
        [
            {**dict(zip(keys, key, strict=True)), **_official(collections[key[0]], rows)}
            for key, rows in found.items()
        ],
        columns=None if found else keys,
    )


def _official(collection: RagCollection, records: Mapping[str, PolicyRecord]) -> dict[str, Any]:
    answers, golds = [], []
    for query in collection.queries:
        record = records.get(query.id)
        if record is not None and is_answer(record.answers[0]):
            answers.append(record.answers[0].text)
            golds.append(query.golds[0])
    values = official_metrics(collection.task.utility, answers, golds)
    return {"answers": len(answers), "failed": len(records) - len(answers), **values}
