"""Measures, which are written as text: ``nDCG@20``, ``AWRF@20(attribute=gender,unit=bits)``.

A measure is its name, ``@`` and a cut-off if it has one, and parameters in parentheses, which can
also precede the cut-off. Put values with commas, parentheses or the like in double quotes, and
write a quote in them twice. ``nDCG@20×AWRF@20`` is a product; ``×`` and ``*`` are the same.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups
from fairqr.evaluation.collections.query_targets import TargetRule
from fairqr.evaluation.measures import kinds
from fairqr.evaluation.measures.kinds import CHOICES, FAIR_RAG, KINDS, PRODUCT, Kind, Need, View
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.fairness.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.fairness.exposure import Discount, FloatArray
from fairqr.retrieval.fairness.target import Target

DEEPEST = 1_000_000
GROUPS_NEEDED = "pass groups in Python, or --corpus on the command line"
_BY_NAME = {n.lower(): kind.name for kind in KINDS.values() for n in (kind.name, *kind.aliases)}
_SHAPE = re.compile(
    r"(?P<name>[A-Za-z-]+)\s*(?P<before>\(.*?\))?\s*(?:@\s*(?P<k>[^\s()]*))?\s*(?P<after>\(.*\))?",
    re.DOTALL,
)
_NESTED = r'"[^"]*"|\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*")*+\))*+\)'
"""What is not split: quotes, and parentheses with parentheses in them."""
_PLAIN = re.compile(r'[^,()="@*×]*\([^,()="@*×]*\)|[^,()="@*]+')
"""A value that needs no quotes."""


@dataclass(frozen=True)
class Factor:
    """One kind of measure with its cut-off and parameters.

    Attributes:
        name: The name of its kind.
        k: The cut-off; None for the whole list.
        given: The parameters that differ from their defaults, in the order of the kind.
    """

    name: str
    k: int | None = None
    given: tuple[tuple[str, Any], ...] = ()

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
        is_rag = values.get("normalization") == FAIR_RAG
        if k is None and (self.kind.needs_cutoff or is_rag):
            yield f"{self} needs a cut-off; write {name}@20{str(self).removeprefix(name)}."
        if k is not None and not (isinstance(k, int | np.integer) and 1 <= k <= DEEPEST):
            yield (
                f"The cut-off of {name} must be a whole number from 1 to {DEEPEST:,}, not "
                f"{one_line(k, 60)}."
            )
        if is_rag and name == "EE-L":
            yield "'Towards Fair RAG' normalises EE-D and EE-R only; choose bounds or none."
        for parameter, value in self.given:
            if value not in (choices := CHOICES.get(parameter, (value,))):
                yield f"{name} has no {parameter} '{value}'; choose {' or '.join(choices)}."
            if parameter in self._set():
                yield f"{self} sets the {parameter}; leave it out."
        if not 0 <= (smoothing := values.get("smoothing", 0)) < 1:
            yield f"The smoothing must be at least 0 and below 1, not {smoothing:g}."
        if "group" in values and values["group"] is None:
            yield f"{name} needs a group; write {name}(group=female)."
        if "against" in values and values["against"] == values["group"]:
            yield "ExposureRatio compares two groups; name another one in 'against'."

    def _set(self) -> dict[str, Any]:
        """Return the parameters that a convention sets."""
        if self.values.get("convention"):
            return kinds.TREC_2022
        is_rag = self.values.get("normalization") == FAIR_RAG
        return {"discount": Discount("top_k", self.k)} if is_rag else {}

    @property
    def kind(self) -> Kind:
        """What it computes."""
        return kinds.find(self.name, dict(self.given))

    @property
    def values(self) -> dict[str, Any]:
        """The value of each parameter, defaults included."""
        return dict(self.kind.takes) | dict(self.given)

    @property
    def attribute(self) -> str | None:
        """The attribute whose groups it is about."""
        return self.values.get("attribute")

    @property
    def takes_attribute(self) -> bool:
        """Whether it still needs an attribute."""
        return Need.GROUPS in self.kind.needs and self.attribute is None

    @property
    def needs(self) -> frozenset[Need]:
        """What it needs besides a run."""
        values = self.values.items()
        return self.kind.needs | {need for value, need in kinds.NEEDS.items() if value in values}

    def with_values(self, **values: Any) -> Factor:
        """Return it with other parameters."""
        return replace(self, given=tuple((self.values | values).items()))

    def view(self, batch: Batch) -> View:
        """Return what it sees of a batch; a convention fills in what it sets."""
        values = self.values
        return View(batch, self.k, values | {n: it for n, it in self._set().items() if n in values})

    def dimension(self, groups: Groups) -> Dimension | None:
        """Return the dimension it is about, if any.

        Raises:
            UnknownAttributeError: The schema lacks the attribute, or a group.
        """
        if self.attribute is None:
            return None
        values = self.values | self._set()
        dimension = groups.dimension(self.attribute, values["unknown"])
        for name in ("group", "against"):
            if values.get(name) is not None:
                kinds.position(dimension, values[name])
        return dimension

    def of_rankings(self, batch: Batch) -> tuple[FloatArray, dict[int, Undefined]]:
        """Return the value of each ranking, and by position why one has none (NaN)."""
        at, why = self.view(batch), dict[int, Undefined]()
        values = np.array(self.kind.compute(at), dtype=np.float64)
        if self.attribute is not None:
            rows = {
                Reason.INFINITE: np.isinf(values),
                Reason.NO_KNOWN_GROUP: ~at.members.any(axis=(1, 2)),
                Reason.EMPTY_GROUP: np.isnan(values),
            }
            for reason, found in rows.items():
                why |= dict.fromkeys(np.flatnonzero(found).tolist(), Undefined(reason))
        if Need.TARGET in self.needs:
            for query, undefined in at.targets[1].items():
                why |= dict.fromkeys(batch.of_query(query), undefined)
        values[list(why)] = np.nan
        return values, why

    def __str__(self) -> str:
        cutoff = "" if self.k is None else f"@{self.k}"
        listed = ",".join(f"{name}={_value_text(value)}" for name, value in self.given)
        return self.name + cutoff + (f"({listed})" if listed else "")


@dataclass(frozen=True)
class Measure:
    """A measure, or the product of several, taken for each ranking; its mean is taken after.

    ``str(measure)`` is its text, such as ``AWRF@20(attribute=gender)``, which
    :func:`parse_measure` reads back. Parameters that have their default are left out of it.
    ``nDCG@20×AWRF@20`` is the measure of task 1 of TREC Fair and of FAIR-QR. A product has no value
    if a factor has none. If a query missing from the run counts as 0 for a factor, it is 0.
    """

    factors: tuple[Factor, ...]

    def __post_init__(self) -> None:
        for factor in self.factors if self.is_product else ():
            if factor.kind.by_query or not factor.kind.higher_is_better:
                raise InputError(
                    f"{factor} cannot be a factor: a product is of measures of one ranking "
                    "that are better the higher they are, such as nDCG@20 and AWRF@20."
                )

    @property
    def is_product(self) -> bool:
        """Whether it has several factors."""
        return len(self.factors) > 1

    @property
    def kind(self) -> Kind:
        """What it computes."""
        return PRODUCT if self.is_product else self.factors[0].kind

    @property
    def needs(self) -> frozenset[Need]:
        """What it needs besides a run."""
        return frozenset().union(*(factor.needs for factor in self.factors))

    @property
    def counts_missing(self) -> bool:
        """Whether a query missing from the run counts as 0 by default: measures of relevance."""
        return any(it.kind.needs == {Need.QRELS} and not it.kind.by_query for it in self.factors)

    def with_attribute(self, attribute: str) -> Measure:
        """Return the measure with this attribute wherever it needs one."""
        factors = (
            it.with_values(attribute=attribute) if it.takes_attribute else it for it in self.factors
        )
        return Measure(tuple(factors))

    def for_target(self, rule: TargetRule) -> Measure:
        """Return the measure with the policy for the unknown of a track, if the target is its own.

        In 2022 the unknown is a group; in 2021 only in products. A policy or convention that the
        measure names stays.
        """
        factors = []
        for it in () if isinstance(rule, Target) else self.factors:
            is_named = it.values.get("unknown") or it.values.get("convention")
            if it.attribute and Need.TARGET in it.needs and not is_named:
                is_group = rule == "trec2022" or TIMES in it.attribute
                it = it.with_values(unknown="group" if is_group else "exclude")
            factors.append(it)
        return Measure(tuple(factors)) if factors else self

    def targeted(self, groups: Groups | None) -> list[Dimension]:
        """Return the dimensions that are compared with the target of the evaluation.

        Raises:
            InputError: The measure cannot be computed with these groups.
        """
        if groups is None:
            if Need.GROUPS in self.needs:
                raise InputError(f"{self} needs the groups of the documents; {GROUPS_NEEDED}.")
            return []
        found = [(factor, factor.dimension(groups)) for factor in self.factors]
        return [
            dimension
            for factor, dimension in found
            if dimension and Need.TARGET in factor.needs and not factor.values.get("convention")
        ]

    def scores(self, batch: Batch) -> list[Score]:
        """Return the value of each query, or the reason why it has none.

        A measure of one ranking is the mean over the rankings of a query that have a value.
        """
        missing = dict.fromkeys(batch.missing(), Undefined(Reason.MISSING))
        if self.kind.by_query:
            at, of_query = self.factors[0].view(batch), self.kind.compute
            return [missing.get(q) or of_query(at, q) for q in range(len(batch.queries))]
        parts = [factor.of_rankings(batch) for factor in self.factors]
        values = np.prod([found for found, _ in parts], axis=0)
        why = {place: it for _, own in reversed(parts) for place, it in own.items()}
        size, known = len(batch.queries), ~np.isnan(values)
        counts = np.bincount(batch.owner[known], minlength=size)
        sums = np.bincount(batch.owner[known], values[known], size)
        scores: list[Score] = (sums / np.maximum(counts, 1)).tolist()
        for query in np.flatnonzero(counts == 0).tolist():
            scores[query] = missing.get(query) or why[batch.of_query(query).start]
        if any(factor.kind.needs_relevant for factor in self.factors):
            for query in np.flatnonzero(batch.relevant_counts == 0).tolist():
                scores[query] = Undefined(Reason.NO_RELEVANT)
        return scores

    def settings(self) -> dict[str, str | int | None]:
        """Return all parameters, defaults included; of a product its factors."""
        if self.is_product:
            return {"factors": str(self)}
        values = {"k": self.factors[0].k} | self.factors[0].values
        return {n: it if it is None or isinstance(it, int) else str(it) for n, it in values.items()}

    def __str__(self) -> str:
        return TIMES.join(map(str, self.factors))


def parse_measures(texts: Any) -> list[Measure]:
    """Read several measures; each is kept once, in the order given.

    Args:
        texts: Measures separated by commas; or a sequence of these, of measures, or of measures of
            ir_measures, which are read by their text.

    Raises:
        InputError: A text is not a measure; the message says which measures exist.
    """
    is_one = isinstance(texts, str | Measure) or _is_of_ir_measures(texts)
    measures: list[Measure] = []
    for given in [texts] if is_one or not isinstance(texts, Iterable) else texts:
        if isinstance(given, Measure):
            measures.append(given)
        elif isinstance(given, str) or _is_of_ir_measures(given):
            measures += map(parse_measure, filter(str.strip, _split(str(given), ",")))
        else:
            raise InputError(
                f"A measure cannot be of type {type(given).__name__}; write it as text, such as "
                "nDCG@20."
            )
    if not measures:
        raise InputError("No measure is named; write for instance nDCG@20,AWRF@20.")
    return list(dict.fromkeys(measures))


def _is_of_ir_measures(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "ir_measures"


def parse_measure(text: str) -> Measure:
    """Read one measure, or a product of several.

    Raises:
        InputError: It is not a measure; the message says which measures exist.
    """
    return Measure(tuple(map(_factor, _split(text, "×*"))))


def _factor(text: str) -> Factor:
    match, quoted = _SHAPE.fullmatch(text.strip()), f"'{one_line(text)}'"
    if match is None:
        raise InputError(f"{quoted} is not a measure; write nDCG@20 or AWRF@20(unit=bits).")
    name = _BY_NAME.get(match["name"].lower())
    if name is None:
        near = difflib.get_close_matches(match["name"].lower(), _BY_NAME, 1)
        meant = f"did you mean {_BY_NAME[near[0]]}? The" if near else "the"
        there = f"{meant} measures are {', '.join(dict.fromkeys(_BY_NAME.values()))}"
        raise InputError(f"There is no measure '{one_line(match['name'])}'; {there}.")
    if match["before"] and match["after"]:
        raise InputError(f"{quoted} has two lists of parameters; join them.")
    if match["k"] is not None and not re.fullmatch(r"[0-9]{1,9}", match["k"]):
        raise InputError(f"The cut-off of {quoted} is not a whole number; write {name}@20.")
    k = None if match["k"] is None else int(match["k"])
    listed = (match["before"] or match["after"] or "()")[1:-1]
    given: dict[str, str] = {}
    for item in _split(listed, ",") if listed.strip() else []:
        parameter, _, value = map(str.strip, item.partition("="))
        if not value:
            wrong = f"'{one_line(item.strip())}' in {quoted}"
            raise InputError(f"{wrong} is not a parameter; write name=value.")
        if parameter in given:
            raise InputError(f"{quoted} has the parameter {parameter} twice; keep one.")
        given[parameter] = value
    takes = kinds.find(name, given).takes
    if strange := [it for it in given if it not in takes]:
        has = ", ".join(takes) or "none"
        raise InputError(f"{name} has no parameter '{one_line(strange[0])}'; it has {has}.")
    return Factor(name, k, tuple((it, _read(it, value, k, quoted)) for it, value in given.items()))


def _read(name: str, value: str, k: int | None, quoted: str) -> Any:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1].replace('""', '"')
    try:
        if name == "discount":
            return Discount("top_k", k) if value == "top_k" and k else Discount.parse(value)
        return float(value) if name == "smoothing" else value
    except FairqrError as error:
        raise InputError(f"In {quoted}: {error}") from None
    except ValueError:
        wrong = f"In {quoted} the {name} is not a number"
        raise InputError(f"{wrong}; write one such as 0.01.") from None


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
