"""LaMP's own measures of the deterministic rankings' answers, as others report them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairqr.evaluation.lamp.metrics import Accuracy, FourMinusError, Rouge
from fairqr.evaluation.lamp.official import official_metrics
from fairqr.evaluation.rag.collection import RagCollection
from fairqr.evaluation.rag.measures.utility_bounds import is_answer
from fairqr.evaluation.rag.records import PolicyRecord

__all__ = ["Official", "official_of_deterministic"]

_LAMP = (Accuracy, FourMinusError, Rouge)


@dataclass(frozen=True, slots=True)
class Official:
    """The measures of one retriever's ranking with one generator.

    Attributes:
        values: By name; see :func:`fairqr.evaluation.lamp.official.official_metrics`.
        answers: Over how many they are: one for each query.
        failed: How many generations failed, which are left out.
    """

    values: Mapping[str, float]
    answers: int
    failed: int


def official_of_deterministic(
    records: Sequence[PolicyRecord], collections: Mapping[str, RagCollection]
) -> dict[tuple[str, str, str], Official]:
    """Return them by the names of the collection, the generator and the retriever.

    Collections with a utility that is none of LaMP's are left out. A deterministic ranking is the
    same under every seed, so that each query counts once, by the first seed with an answer.

    Args:
        records: Of all policies.
        collections: By name; for the golds.
    """
    found: dict[tuple[str, str, str], dict[str, PolicyRecord]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        utility = collections[record.collection].task.utility
        if record.policy == "deterministic" and record.answers and isinstance(utility, _LAMP):
            key = (record.collection, record.generator, record.retriever)
            rows = found.setdefault(key, {})
            if record.query not in rows or not is_answer(rows[record.query].answers[0]):
                rows[record.query] = record
    return {key: _official(collections[key[0]], rows) for key, rows in found.items()}


def _official(collection: RagCollection, records: Mapping[str, PolicyRecord]) -> Official:
    answers, golds = [], []
    for query in collection.queries:
        record = records.get(query.id)
        if record is not None and is_answer(record.answers[0]):
            answers.append(record.answers[0].text)
            golds.append(query.golds[0])
    values = official_metrics(collection.task.utility, answers, golds)
    return Official(values, len(answers), len(records) - len(answers))
