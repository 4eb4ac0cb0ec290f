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
_BY_NAME = {n.lower(): kind.name for kind in KINDS.values() for n in (kind.name, *kind.aliases)}
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
        asked = dict(self.given)
        if asked.get("attribute") is not None:
            asked["attribute"] = TIMES.join(map(str.strip, factors_of(asked["attribute"])))
        takes = kinds.find(self.name, asked).takes
        given = tuple((n, asked[n]) for n, usual in takes.items() if asked.get(n, usual) != usual)
        object.__setattr__(self, "given", given)
        for problem in self._problems():
            raise InputError(problem)

    def _problems(self) -> Iterator[str]:
        name, k, values = self.name, self.k, self.values
        if k is None and self.kind.needs_cutoff:
            yield f"{self} needs a cut-off; write {name}@20{str(self).removeprefix(name)}."
        if k is not None and not (isinstance(k, int | np.integer) and 1 <= k <= DEEPEST):
            deepest = f"a whole number from 1 to {DEEPEST:,}"
            yield f"The cut-off of {name} must be {deepest}, not {one_line(k, 60)}."
        for parameter, value in self.given:
            if value not in (choices := CHOICES.get(parameter, (value,))):
                yield f"{name} has no {parameter} '{value}'; choose {' or '.join(choices)}."
            if parameter in self._set():
                yield f"{self} sets the {parameter}; leave it out."
        if not 0 <= (smoothing := values.get("smoothing", 0)) < 1:
            yield f"The smoothing must be at least 0 and below 1, not {smoothing:g}."
        if "group" in values and values["group"] is None:
            yield f"{name} needs a group; write {name}(group=female)."
        for factor in self.factors:
            if factor.kind.by_query or not factor.kind.higher_is_better:
                yield (
                    f"{factor} cannot be a factor: a product is of measures of one ranking "
                    "that are better the higher they are, such as nDCG@20 and AWRF@20."
                )

    def _set(self) -> dict[str, Any]:
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
        return frozenset().union(*(it.kind.needs for it in self.parts))

    @property
    def counts_missing(self) -> bool:
        """Whether a query missing from the run counts as 0 by default: measures of relevance."""
        return any(it.needs == {QRELS} and not it.kind.by_query for it in self.parts)

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

        def change(it: Measure) -> Measure:
            lacks_one = GROUPS in it.needs and not it.attribute
            return it.with_values(attribute=attribute) if lacks_one else it

        return self.changed(change)

    def for_target(self, rule: TargetRule) -> Measure:
        """Return the measure with the policy for the unknown of a track, if the target is its own.

        It makes the unknown a group. A policy or convention that the measure names stays.
        """

        def change(it: Measure) -> Measure:
            is_named = it.values.get("unknown") or it.values.get("convention")
            if TARGET not in it.needs or not it.attribute or is_named:
                return it
            return it.with_values(unknown="group")

        return self if isinstance(rule, Target) else self.changed(change)

    def targeted(self, groups: Groups | None) -> list[Dimension]:
        """Return the dimensions that are compared with the target of the evaluation.

        Raises:
            InputError: The measure cannot be computed with these groups.
        """
        found = []
        for it in self.parts if GROUPS in self.needs else ():
            if groups is None:
                raise InputError(f"{self} needs the groups of the documents; {GROUPS_NEEDED}.")
            if it.attribute is None:
                continue
            dimension = groups.dimension(it.attribute, (it.values | it._set())["unknown"])
            if group := it.values.get("group"):
                kinds.position(dimension, group)
            if TARGET in it.needs and not it.values.get("convention"):
                found.append(dimension)
        return found

    def _view(self, batch: Batch) -> kinds.View:
        """Return what it sees of a batch; a convention fills in what it sets."""
        values = self.values
        held = {name: value for name, value in self._set().items() if name in values}
        return kinds.View(batch, self.k, values | held)

    def _of_rankings(self, batch: Batch) -> tuple[FloatArray, dict[int, Reason]]:
        """Return the value of each ranking, and by position why one has none (NaN)."""
        at, why = self._view(batch), dict[int, Reason]()
        values = np.array(self.kind.compute(at), dtype=np.float64)
        if self.attribute is not None:
            rows = {
                Reason.INFINITE: np.isinf(values),
                Reason.NO_KNOWN_GROUP: ~at.members.any(axis=(1, 2)),
                Reason.EMPTY_GROUP: np.isnan(values),
            }
            for reason, found in rows.items():
                why |= dict.fromkeys(np.flatnonzero(found).tolist(), reason)
        if TARGET in self.needs:
            for query, reason in at.targets[1].items():
                why |= dict.fromkeys(batch.of_query(query), reason)
        values[list(why)] = np.nan
        return values, why

    def scores(self, batch: Batch) -> list[Score]:
        """Return the value of each query, or the reason why it has none.

        A measure of one ranking is the mean over the rankings of a query that have a value.
        """
        absent = np.flatnonzero(np.diff(batch.starts) == 0).tolist()
        missing = dict.fromkeys(absent, Reason.MISSING)
        if self.kind.by_query:
            at, of_query = self._view(batch), self.kind.compute
            return [missing.get(q) or of_query(at, q) for q in range(len(batch.queries))]
        parts = [factor._of_rankings(batch) for factor in self.parts]
        values = np.prod([found for found, _ in parts], axis=0)
        why = {place: it for _, own in reversed(parts) for place, it in own.items()}
        means, counts = batch.means(values, ~np.isnan(values))
        scores: list[Score] = means.tolist()
        for query in np.flatnonzero(counts == 0).tolist():
            scores[query] = missing.get(query) or why[batch.of_query(query).start]
        if any(factor.kind.needs_relevant for factor in self.parts):
            for query in np.flatnonzero(batch.relevant_counts == 0).tolist():
                scores[query] = Reason.NO_RELEVANT
        return scores

    def __str__(self) -> str:
        if self.factors:
            return TIMES.join(map(str, self.factors))
        cutoff = "" if self.k is None else f"@{self.k}"
        listed = ",".join(f"{name}={_value_text(value)}" for name, value in self.given)
        return self.name + cutoff + (f"({listed})" if listed else "")


def parse_measures(texts: Any) -> list[Measure]:
    """Read several measures; each is kept once, in the order given.

    Args:
        texts: Measures separated by commas; or a sequence of these, of measures, or of measures of
            ir_measures, which are read by their text.

    Raises:
        InputError: A text is not a measure; the message says which measures exist.
    """
    measures: list[Measure] = []
    several = isinstance(texts, Iterable) and not isinstance(texts, str)
    for given in texts if several else [texts]:
        if isinstance(given, Measure):
            measures.append(given)
        else:
            measures += map(parse_measure, filter(str.strip, _split(str(given), ",")))
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
    match, quoted = _SHAPE.fullmatch(text.strip()), f"'{one_line(text)}'"
    if match is None or (match["before"] and match["after"]):
        raise InputError(f"{quoted} is not a measure; write nDCG@20 or AWRF@20(unit=bits).")
    name = _BY_NAME.get(match["name"].lower())
    if name is None:
        known = ", ".join(dict.fromkeys(_BY_NAME.values()))
        raise InputError(f"There is no measure {quoted}; the measures are {known}.")
    k = None if match["k"] is None else int(match["k"])
    listed = (match["before"] or match["after"] or "()")[1:-1]
    given: dict[str, Any] = {}
    for item in _split(listed, ",") if listed.strip() else []:
        parameter, _, value = map(str.strip, item.partition("="))
        if not value or parameter in given:
            wrong = f"'{one_line(item.strip())}' in {quoted}"
            raise InputError(f"{wrong} is not a parameter; write each once, as name=value.")
        try:
            given[parameter] = _read(parameter, value, k)
        except (FairqrError, ValueError) as error:
            raise InputError(f"In {quoted}: {error}") from None
    takes = kinds.find(name, given).takes
    if strange := [it for it in given if it not in takes]:
        has = ", ".join(takes) or "none"
        raise InputError(f"{name} has no parameter '{one_line(strange[0])}'; it has {has}.")
    return Measure(name, k, tuple(given.items()))


def _read(name: str, value: str, k: int | None) -> Any:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1].replace('""', '"')
    if name == "discount":
        return Discount("top_k", k) if value == "top_k" and k else Discount.parse(value)
    return float(value) if name == "smoothing" else value


def _split(text: str, separators: str) -> list[str]:
    """Split where a separator stands outside of parentheses and quotes."""
    found = re.findall(rf'(?:^|[{separators}])((?:[^()"{separators}]|{_NESTED})*+)', text)
    if len(",".join(found)) != len(text):
        raise InputError(
            f"'{one_line(text)}' has an unmatched parenthesis or quote; add or remove one."
        )
    return found


def _value_text(value: object) -> str:
    """Write the value of a parameter so that it can be read back; quoted if it is ambiguous."""
    text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text) and text.isprintable() and text == text.strip():
        return text
    return '"' + text.replace('"', '""') + '"'
