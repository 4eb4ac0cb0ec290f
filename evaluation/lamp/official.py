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
    rating_of,
    worse_rating,
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
    if not answers:
        return {}
    if isinstance(utility, Accuracy):
        return _classification(utility, answers, golds)
    if isinstance(utility, FourMinusError):
        return _errors(answers, golds)
    measures: list[Utility] = [utility]
    if isinstance(utility, Rouge):
        measures = [Rouge("rouge1"), Rouge("rougeL")]
    pairs = list(zip(answers, golds, strict=True))
    return {
        measure.name: math.fsum(measure(answer, [gold]) for answer, gold in pairs) / len(pairs)
        for measure in measures
    }


def _classification(
    utility: Accuracy, answers: Sequence[str], golds: Sequence[str]
) -> Mapping[str, float]:
    """Return accuracy, and F1 averaged over all labels of the task.

    A label that is neither a gold nor answered counts with F1 0, as in LaMP's evaluation.
    """
    found = [utility.label(answer) for answer in answers]
    right = [utility.label(gold) for gold in golds]
    pairs = list(zip(found, right, strict=True))
    scores = []
    for label in utility.labels or CITATIONS:
        both = sum(one == label == other for one, other in pairs)
        # Twice the true positives over all that are answered or gold: the harmonic mean.
        total = found.count(label) + right.count(label)
        scores.append(2 * both / total if total else 0.0)
    return {
        "accuracy": sum(one is not None and one == other for one, other in pairs) / len(pairs),
        "F1": math.fsum(scores) / len(scores),
    }


def _errors(answers: Sequence[str], golds: Sequence[str]) -> Mapping[str, float]:
    """Return the mean absolute error and the root of the mean squared error of ratings."""
    errors = []
    for answer, gold in zip(answers, map(float, golds), strict=True):
        rating = rating_of(answer)
        errors.append(abs((worse_rating(gold) if rating is None else rating) - gold))
    count = len(errors)
    return {
        "MAE": math.fsum(errors) / count,
        "RMSE": math.sqrt(math.fsum(error * error for error in errors) / count),
    }
