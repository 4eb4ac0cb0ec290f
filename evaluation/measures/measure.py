"""Measures, which are written as text: ``nDCG@20``, ``AWRF@20(attribute=gender,unit=bits)``.

A measure is its name, ``@`` and a cut-off if it has one, and parameters in parentheses, which can
also precede the cut-off. Put values with commas, parentheses or the like in double quotes, and
write a quote in them twice. ``nDCG@20×AWRF@20`` is a product; ``×`` and ``*`` are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.collections.query_targets import TargetRule
from fairqr.evaluation.measures import kinds
from fairqr.evaluation.measures.kinds import CHOICES, GROUPS, KINDS, QRELS, TARGET, Kind
from fairqr.evaluation.scores import Reason, Score
from fairqr.retrieval.fairness.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.fairness.exposure import Discount, FloatArray
from fairqr.retrieval.fairness.target import Target

DEEPEST = 1_000_000
GROUPS_NEEDED = "pass groups in Python, or --corpus on the command line"


def _names() -> dict[str, str]:
    """Return the names of kinds by all names that are read, in lower case."""
    names: dict[str, str] = {}
    for kind in KINDS.values():
        names |= dict.fromkeys(map(str.lower, (kind.name, *kind.aliases)), kind.name)
    return names


_BY_NAME = _names()
_SHAPE = re.compile(
    r"(?P<name>[A-Za-z-]+)\s*(?P<before>\(.*?\))?\s*(?:@\s*(?P<k>[0-9]{1,9})\s*)?(?P<after>\(.*\))?",
    re.DOTALL,
)
_NESTED = r'"[^"]*"|\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*")*+\))*+\)'
"""What is not split: quotes, and parentheses with parentheses in them."""
_PLAIN = re.compile(r'[^,()="@*×]*\([^,()="@*×]*\)|[^,()="@*]+')
"""A value that needs no quotes."""


@dataclass(frozen=True)
class Measure:
    """A measure, or the product of several, taken for each ranking; its mean is taken after.

    ``str(measure)`` is its text, such as ``AWRF@20(attribute=gender)``, which
    :func:`parse_measure` reads back. Parameters that have their default are left out of it.
    ``nDCG@20×AWRF@20`` is the measure of task 1 of TREC Fair and of FAIR-QR. A product has no value
    if a factor has none. If a query missing from the run counts as 0 for a factor, it is 0.

    Attributes:
        name: The name of its kind.
        k: The cut-off; None for the whole list.
        given: The parameters that differ from their defaults, in the order of the kind.
        factors: What a product is of.
    """

    name: str
    k: int | None = None
    given: tuple[tuple[str, Any], ...] = ()
    factors: tuple[Measure, ...] = ()

    def __post_init__(self) -> None:
        values = dict(self.given)
        if values.get("attribute") is not None:
            values["attribute"] = TIMES.join(map(str.strip, factors_of(values["attribute"])))
        differing = []
        for name, default in kinds.find(self.name, values).takes.items():
            value = values.get(name, default)
            if value != default:
                differing.append((name, value))
        object.__setattr__(self, "given", tuple(differing))
        for problem in self._problems():
            raise InputError(problem)

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong with the cut-off, the parameters and the factors."""
        name = self.name
        yield from self._problems_of_cutoff()
        for parameter, value in self.given:
            choices = CHOICES.get(parameter, (value,))
            if value not in choices:
                yield f"{name} has no {parameter} '{value}'; choose {' or '.join(choices)}."
            if parameter in self._of_convention():
                yield f"{self} sets the {parameter}; leave it out."
        values = self.values
        smoothing = values.get("smoothing", 0)
        if not 0 <= smoothing < 1:
            yield f"The smoothing must be at least 0 and below 1, not {smoothing:g}."
        if "group" in values and values["group"] is None:
            yield f"{name} needs a group; write {name}(group=female)."
        for factor in self.factors:
            if factor.kind.by_query or not factor.kind.higher_is_better:
                yield (
                    f"{factor} cannot be a factor: a product is of measures of one ranking "
                    "that are better the higher they are, such as nDCG@20 and AWRF@20."
                )

    def _problems_of_cutoff(self) -> Iterator[str]:
        """Yield that the cut-off is missing, or no rank."""
        name = self.name
        if self.k is None:
            if self.kind.needs_cutoff:
                yield f"{self} needs a cut-off; write {name}@20{str(self).removeprefix(name)}."
        elif not isinstance(self.k, int | np.integer) or not 1 <= self.k <= DEEPEST:
            yield (
                f"The cut-off of {name} must be a whole number from 1 to {DEEPEST:,}, not "
                f"{one_line(self.k, 60)}."
            )

    def _of_convention(self) -> dict[str, Any]:
        """Return the parameters that a convention sets."""
        return kinds.TREC_2022 if self.values.get("convention") else {}

    @property
    def kind(self) -> Kind:
        """What it computes."""
        return kinds.find(self.name, dict(self.given))

    @property
    def parts(self) -> tuple[Measure, ...]:
        """The factors of a product; otherwise the measure alone."""
        return self.factors or (self,)

    @property
    def values(self) -> dict[str, Any]:
        """The value of each parameter, defaults included."""
        return dict(self.kind.takes) | dict(self.given)

    @property
    def attribute(self) -> str | None:
        """The attribute whose groups it is about."""
        return self.values.get("attribute")

    @property
    def needs(self) -> frozenset[str]:
        """What it needs besides a run."""
        return frozenset().union(*(part.kind.needs for part in self.parts))

    @property
    def counts_missing(self) -> bool:
        """Whether a query missing from the run counts as 0 by default: measures of relevance."""
        return any(part.needs == {QRELS} and not part.kind.by_query for part in self.parts)

    def changed(self, change: Callable[[Measure], Measure]) -> Measure:
        """Return the measure with this change of it, or of each factor of a product."""
        if not self.factors:
            return change(self)
        return replace(self, factors=tuple(map(change, self.factors)))

    def with_values(self, **values: Any) -> Measure:
        """Return it with other parameters."""
        return replace(self, given=tuple((self.values | values).items()))

    def with_attribute(self, attribute: str) -> Measure:
        """Return the measure with this attribute wherever it needs one."""

        def change(part: Measure) -> Measure:
            lacks_one = GROUPS in part.needs and not part.attribute
            return part.with_values(attribute=attribute) if lacks_one else part

        return self.changed(change)

    def for_target(self, rule: TargetRule) -> Measure:
        """Return the measure with the policy for the unknown of a track, if the target is its own.

        It makes the unknown a group. A policy or convention that the measure names stays.
        """
        if isinstance(rule, Target):
            return self

        def change(part: Measure) -> Measure:
            has_target = TARGET in part.needs and part.attribute
            is_named = part.values.get("unknown") or part.values.get("convention")
            if not has_target or is_named:
                return part
            return part.with_values(unknown="group")

        return self.changed(change)

    def targeted(self, groups: Groups | None) -> list[Dimension]:
        """Return the dimensions that are compared with the target of the evaluation.

        Raises:
            InputError: The measure cannot be computed with these groups.
        """
        if GROUPS not in self.needs:
            return []
        if groups is None:
            raise InputError(f"{self} needs the groups of the documents; {GROUPS_NEEDED}.")
        dimensions = []
        for part in self.parts:
            if part.attribute is None:
                continue
            values = part.values | part._of_convention()
            dimension = groups.dimension(part.attribute, values["unknown"])
            group = values.get("group")
            if group:
                kinds.position(dimension, group)
            if TARGET in part.needs and not values.get("convention"):
                dimensions.append(dimension)
        return dimensions

    def _view(self, batch: Batch) -> kinds.View:
        """Return what it sees of a batch; a convention fills in what it sets."""
        values = self.values
        for name, value in self._of_convention().items():
            if name in values:
                values[name] = value
        return kinds.View(batch, self.k, values)

    def _of_rankings(self, batch: Batch) -> tuple[FloatArray, dict[int, Reason]]:
        """Return the value of each ranking, and by position why one has none (NaN)."""
        view = self._view(batch)
        reasons: dict[int, Reason] = {}
        values = np.array(self.kind.compute(view), dtype=np.float64)
        if self.attribute is not None:
            rows_without_value = {
                Reason.INFINITE: np.isinf(values),
                Reason.NO_KNOWN_GROUP: ~view.members.any(axis=(1, 2)),
                Reason.EMPTY_GROUP: np.isnan(values),
            }
            for reason, rows in rows_without_value.items():
                reasons |= dict.fromkeys(np.flatnonzero(rows).tolist(), reason)
        if TARGET in self.needs:
            for query, reason in view.targets[1].items():
                reasons |= dict.fromkeys(batch.of_query(query), reason)
        values[list(reasons)] = np.nan
        return values, reasons

    def scores(self, batch: Batch) -> list[Score]:
        """Return the value of each query, or the reason why it has none.

        A measure of one ranking is the mean over the rankings of a query that have a value.
        """
        absent = np.flatnonzero(np.diff(batch.starts) == 0).tolist()
        missing = dict.fromkeys(absent, Reason.MISSING)
        if self.kind.by_query:
            view = self._view(batch)
            compute = self.kind.compute
            queries = range(len(batch.queries))
            return [missing.get(query) or compute(view, query) for query in queries]
        parts = [factor._of_rankings(batch) for factor in self.parts]
        values = np.prod([of_factor for of_factor, _ in parts], axis=0)
        reasons: dict[int, Reason] = {}
        for _, of_factor in reversed(parts):  # that of the first factor counts
            reasons |= of_factor
        means, counts = batch.means(values, ~np.isnan(values))
        scores: list[Score] = means.tolist()
        for query in np.flatnonzero(counts == 0).tolist():
            scores[query] = missing.get(query) or reasons[batch.of_query(query).start]
        if any(factor.kind.needs_relevant for factor in self.parts):
            for query in np.flatnonzero(batch.relevant_counts == 0).tolist():
                scores[query] = Reason.NO_RELEVANT
        return scores

    def __str__(self) -> str:
        if self.factors:
            return TIMES.join(map(str, self.factors))
        text = self.name
        if self.k is not None:
            text += f"@{self.k}"
        if self.given:
            parameters = [f"{name}={_value_text(value)}" for name, value in self.given]
            text += f"({','.join(parameters)})"
        return text


def parse_measures(texts: Any) -> list[Measure]:
    """Read several measures; each is kept once, in the order given.

    Args:
        texts: Measures separated by commas; or a sequence of these, of measures, or of measures of
            ir_measures, which are read by their text.

    Raises:
        InputError: A text is not a measure; the message says which measures exist.
    """
    measures: list[Measure] = []
    are_several = isinstance(texts, Iterable) and not isinstance(texts, str)
    for text in texts if are_several else [texts]:
        if isinstance(text, Measure):
            measures.append(text)
        else:
            measures += map(parse_measure, filter(str.strip, _split(str(text), ",")))
    if not measures:
        raise InputError("No measure is named; write for instance nDCG@20,AWRF@20.")
    return list(dict.fromkeys(measures))


def parse_measure(text: str) -> Measure:
    """Read one measure, or a product of several.

    Raises:
        InputError: It is not a measure; the message says which measures exist.
    """
    first, *others = map(_factor, _split(text, "×*"))
    return Measure(kinds.PRODUCT.name, factors=(first, *others)) if others else first


def _factor(text: str) -> Measure:
    """Read a measure that is no product."""
    match = _SHAPE.fullmatch(text.strip())
    quoted = f"'{one_line(text)}'"
    if match is None or (match["before"] and match["after"]):
        raise InputError(f"{quoted} is not a measure; write nDCG@20 or AWRF@20(unit=bits).")
    name = _BY_NAME.get(match["name"].lower())
    if name is None:
        known = ", ".join(dict.fromkeys(_BY_NAME.values()))
        raise InputError(f"There is no measure {quoted}; the measures are {known}.")
    k = None if match["k"] is None else int(match["k"])
    in_parentheses = match["before"] or match["after"] or "()"
    values = _parameters(in_parentheses[1:-1], quoted, k)
    takes = kinds.find(name, values).takes
    for parameter in values:
        if parameter not in takes:
            raise InputError(
                f"{name} has no parameter '{one_line(parameter)}'; it has "
                f"{', '.join(takes) or 'none'}."
            )
    return Measure(name, k, tuple(values.items()))


def _parameters(text: str, quoted: str, k: int | None) -> dict[str, Any]:
    """Read the parameters of a measure.

    Args:
        text: What stands between its parentheses.
        quoted: The whole text, for messages.
        k: The cut-off.
    """
    values: dict[str, Any] = {}
    for item in _split(text, ",") if text.strip() else []:
        parameter, _, value = map(str.strip, item.partition("="))
        if not value or parameter in values:
            raise InputError(
                f"'{one_line(item.strip())}' in {quoted} is not a parameter; write each once, as "
                "name=value."
            )
        try:
            values[parameter] = _read(parameter, value, k)
        except (FairqrError, ValueError) as error:
            raise InputError(f"In {quoted}: {error}") from None
    return values


def _read(name: str, value: str, k: int | None) -> Any:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1].replace('""', '"')
    if name == "discount":
        is_to_cutoff = value == "top_k" and k
        return Discount("top_k", k) if is_to_cutoff else Discount.parse(value)
    return float(value) if name == "smoothing" else value


def _split(text: str, separators: str) -> list[str]:
    """Split where a separator stands outside of parentheses and quotes."""
    parts = re.findall(rf'(?:^|[{separators}])((?:[^()"{separators}]|{_NESTED})*+)', text)
    if len(",".join(parts)) != len(text):
        raise InputError(
            f"'{one_line(text)}' has an unmatched parenthesis or quote; add or remove one."
        )
    return parts


def _value_text(value: object) -> str:
    """Write the value of a parameter so that it can be read back; quoted if it is ambiguous."""
    text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text) and text.isprintable() and text == text.strip():
        return text
    return '"' + text.replace('"', '""') + '"'
