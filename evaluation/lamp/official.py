"""The measures of LaMP's own evaluation, over many answers: for reports.

Accuracy and macro F1 for LaMP-1 and 2, MAE and RMSE for LaMP-3, ROUGE-1 and ROUGE-L for the rest.
Labels and ratings are read as in :mod:`fairqr.evaluation.lamp.metrics`, so that a label in a
sentence counts, which LaMP's code refuses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from fairqr.evaluation.lamp.metrics import (
    Accuracy,
    FourMinusError,
    Rouge,
)
from fairqr.evaluation.rag.collection import Utility

__all__ = ["official_metrics"]

CITATIONS = ("[1]", "[2]")


def official_metrics(
    utility: Utility, answers: Sequence[str], golds: Sequence[str]
) -> Mapping[str, float]:
    """Return the official measures of a task by name; none where there are no answers.

    Args:
        utility: Of the task; other utilities give their mean, under their own name.
        answers: One for each query; an empty one is wrong, has ROUGE 0, or counts as the worse of
            the ratings 1 and 5.
        golds: The gold of each query, in the same order.

    Raises:
        InputError: ROUGE is asked for, and its library is not installed.
    """
    pairs = list(zip(answers, golds, strict=True))
    if not pairs:
        return {}
    if isinstance(utility, FourMinusError):
        errors = [utility.error(answer, gold) for answer, gold in pairs]
        return {"MAE": _mean(errors), "RMSE": math.sqrt(_mean([e * e for e in errors]))}
    measures = (Rouge("rouge1"), Rouge("rougeL")) if isinstance(utility, Rouge) else (utility,)
    found = {m.name: _mean([m(answer, [gold]) for answer, gold in pairs]) for m in measures}
    if isinstance(utility, Accuracy):
        found["F1"] = _macro_f1(utility, pairs)
    return found


def _macro_f1(utility: Accuracy, pairs: Sequence[tuple[str, str]]) -> float:
    """Return F1 averaged over all labels of the task.

    A label that is neither a gold nor answered counts with F1 0, as in LaMP's evaluation.
    """
    labels = [(utility.label(answer), utility.label(gold)) for answer, gold in pairs]
    scores = []
    for label in utility.labels or CITATIONS:
        both = labels.count((label, label))
        # Twice the true positives over all that are answered or gold: the harmonic mean.
        total = sum((found == label) + (right == label) for found, right in labels)
        scores.append(2 * both / total if total else 0.0)
    return _mean(scores)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
