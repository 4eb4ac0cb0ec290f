"""Measures of groups for ir_measures: ``AWRF@20`` beside ``nDCG@20``, there and in PyTerrier."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import ir_measures
import numpy as np

from fairqr.base.errors import InputError
from fairqr.evaluation.evaluate import evaluate
from fairqr.evaluation.measures.measure import Measure, parse_measures


class _Mean(ir_measures.measures.base.MeanAgg):
    """The mean over the queries that have a value."""

    def add(self, value: float) -> None:
        if not np.isnan(value):
            super().add(value)  # type: ignore[no-untyped-call]


class _FairMeasure(ir_measures.measures.Measure):
    """One measure of ours; ir_measures' provider of measures made at run time computes it."""

    DEFAULT = float("nan")
    RUN_INPUTS = ("query_id", "doc_id", "score")
    QREL_INPUTS = ("query_id", "doc_id", "relevance")

    def __init__(self, measure: Measure, groups: Any, options: dict[str, Any]) -> None:
        ir_measures.measures.Measure.__init__(self)
        self._measure = measure
        self._groups = groups
        self._options = options

    def __matmul__(self, k: int) -> _FairMeasure:
        cut = self._measure.changed(lambda part: dataclasses.replace(part, k=k))
        return _FairMeasure(cut, self._groups, self._options)

    def __repr__(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in self._options.items())
        return f"{self._measure}[{options}]" if options else str(self._measure)

    def __eq__(self, other: object) -> bool:
        """Tell apart measures of other groups, since ir_measures keeps values by measure."""
        if not isinstance(other, _FairMeasure):
            return False
        return repr(self) == repr(other) and self._groups is other._groups

    def __hash__(self) -> int:
        return hash(repr(self))

    def aggregator(self) -> _Mean:
        return _Mean()  # type: ignore[no-untyped-call]

    def runtime_impl(self, qrels: Any, run: Any) -> Iterator[ir_measures.Metric]:
        evaluation = evaluate(run, qrels, self._measure, groups=self._groups, **self._options)
        if len(evaluation.results) > 1:
            choices = " or ".join(evaluation.results)
            raise InputError(f"{self._measure} is of several attributes; write {choices}.")
        (result,) = evaluation.results.values()
        for query, value in result.defined().items():
            yield ir_measures.Metric(query, self, value)


def fair_measures(measures: Any, groups: Any, **options: Any) -> list[_FairMeasure]:
    """Return measures of groups as measures of ir_measures.

    The means are over the queries that have a value, as ours are; the others have NaN.

    Args:
        measures: Each of one attribute, such as ``AWRF@20,Exposure@20(group=female)``.
        groups: As :func:`fairqr.evaluate` takes them.
        options: Further options of :func:`fairqr.evaluate`, such as ``target``.

    Raises:
        InputError: A text is not a measure.
    """
    return [_FairMeasure(measure, groups, options) for measure in parse_measures(measures)]
