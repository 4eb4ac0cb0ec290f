"""Measures, which are written as text: ``nDCG@20``, ``AWRF@20(attribute=gender,unit=bits)``.

A measure is its name, ``@`` and a cut-off if it has one, and parameters in parentheses, which can
also precede the cut-off. Put values with commas, parentheses or the like in double quotes, and
write a quote in them twice. ``nDCG@20×AWRF@20`` is a product; ``×`` and ``*`` are the same.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.evaluation.batch import Batch
from fairqr.evaluation.collections.labels import Groups, UnknownPolicy
from fairqr.evaluation.collections.query_targets import TargetRule
from fairqr.evaluation.measures import kinds
from fairqr.evaluation.measures.kinds import CHOICES, FAIR_RAG, KINDS, Kind, Need, View
from fairqr.evaluation.scores import Reason, Score, Undefined
from fairqr.retrieval.fairness.dimension import TIMES, Dimension, factors_of
from fairqr.retrieval.fairness.exposure import Discount, FloatArray
from fairqr.retrieval.fairness.target import Target

DEEPEST = 1_000_000
GROUPS_NEEDED = "pass groups in Python, or --corpus on the command line"
_QUOTED = frozenset(',()="@*×')
_BY_NAME = {n.lower(): kind for kind in KINDS.values() for n in (kind.name, *kind.aliases)}
_READERS: Mapping[str, Callable[[str], Any]] = {"discount": Discount.parse, "smoothing": float}
_SHAPE = re.compile(
    r"(?P<name>[A-Za-z-]+)\s*(?P<before>\(.*?\))?\s*(?:@\s*(?P<k>[^\s()]*))?\s*(?P<after>\(.*\))?",
    re.DOTALL,
)


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
        takes = self.kind.takes
        given = tuple((n, asked[n]) for n, usual in takes.items() if asked.get(n, usual) != usual)
        object.__setattr__(self, "given", given)
        for problem in self._problems():
            raise InputError(problem)

    def _problems(self) -> Iterator[str]:
        name, k, values = self.name, self.k, self.values
        if k is None and self.kind.needs_cutoff:
            yield f"{name} needs a cut-off; write {name}@20."
        if k is not None and not (isinstance(k, int | np.integer) and 1 <= k <= DEEPEST):
            yield (
                f"The cut-off of {name} must be a whole number from 1 to {DEEPEST:,}, not "
                f"{one_line(k, 60)}."
            )
        for parameter, value in self.given:
            if value not in (choices := CHOICES.get(parameter, (value,))):
                yield f"{name} has no {parameter} '{value}'; choose {' or '.join(choices)}."
            if parameter in kinds.TREC_2022 and values.get("convention"):
                convention = values["convention"]
                yield f"{name}(convention={convention}) sets the {parameter}; leave it out."
        if not 0 <= (smoothing := values.get("smoothing", 0)) < 1:
            yield f"The smoothing must be at least 0 and below 1, not {smoothing:g}."
        if "group" in values and values["group"] is None:
            yield f"{name} needs a group; write {name}(group=female)."
        if "against" in values and values["against"] == values["group"]:
            yield "ExposureRatio compares two groups; name another one in 'against'."
        if "normalization" in values:
            yield from self._problems_of_expected(values)

    def _problems_of_expected(self, values: Mapping[str, Any]) -> Iterator[str]:
        name, k, by_group = self.name, self.k, values["attribute"] is not None
        for parameter in kinds.BY_ITEM if by_group else kinds.BY_GROUP:
            if values.get(parameter) is not None:
                which = "item" if by_group else "group"
                rest = "leave it or the attribute out" if by_group else "add an attribute"
                yield f"{name} takes {parameter} by {which} only; {rest}."
        if by_group and k is None:
            yield (
                f"{name} by group needs a cut-off, to whose ranks the target is scaled; "
                f"write {name}@20(attribute={values['attribute']})."
            )
        if values["normalization"] != FAIR_RAG:
            return
        if name == "EE-L":
            yield (
                "'Towards Fair RAG' normalises EE-D and EE-R only; "
                "choose the normalization bounds or none for EE-L."
            )
        if k is None:
            yield (
                f"{name}(normalization=fair-rag) needs the number of documents that the "
                f"machine user reads; write {name}@5(normalization=fair-rag)."
            )
        if k and values["discount"] not in (None, Discount("top_k", k)):
            yield (
                f"{name}@{k}(normalization=fair-rag) has the discount top_k({k}); "
                "leave the discount out."
            )

    @property
    def kind(self) -> Kind:
        """What it computes."""
        return KINDS[self.name]

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
        """Whether it still needs an attribute; without one, expected exposure is by item."""
        return Need.GROUPS in self.kind.needs and self.attribute is None

    @property
    def needs(self) -> frozenset[Need]:
        """What it needs besides a run."""
        if self.kind.needs:
            return self.kind.needs
        values = self.values
        needs = {Need.GROUPS, Need.TARGET} if self.attribute else {Need.QRELS}
        needs |= {Need.QRELS} if values["documents"] != "all" else set()
        needs |= {Need.GROUPS} if values["items"] == "corpus" else set()
        needs |= {Need.SAMPLES} if values.get("estimator") == "unbiased" else set()
        return frozenset(needs)

    def with_values(self, **values: Any) -> Factor:
        """Return it with other parameters."""
        return replace(self, given=tuple((self.values | values).items()))

    def for_target(self, rule: TargetRule) -> Factor:
        """Return it with the track's policy for the unknown, if the target is the track's.

        In 2022 the unknown is a group; in 2021 only in products. A policy or convention that the
        measure names stays.
        """
        values = self.values
        named = values.get("unknown") or values.get("convention") or not self.attribute
        if isinstance(rule, Target) or named or Need.TARGET not in self.needs:
            return self
        grouped = rule == "trec2022" or TIMES in str(self.attribute)
        return self.with_values(unknown="group" if grouped else "exclude")

    def view(self, batch: Batch) -> View:
        """Return what it sees of a batch; a convention fills in what it sets."""
        values = self.values
        if values.get("convention"):
            values |= {name: it for name, it in kinds.TREC_2022.items() if name in values}
        return View(batch, self.k, values)

    def dimension(self, groups: Groups) -> Dimension | None:
        """Return the dimension it is about, if any.

        Raises:
            UnknownAttributeError: The schema lacks the attribute, or a group.
        """
        if self.attribute is None:
            return None
        values = self.values
        policy: UnknownPolicy | None = "group" if values.get("convention") else values["unknown"]
        dimension = groups.dimension(self.attribute, policy)
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
        return any(factor.kind.needs == {Need.QRELS} for factor in self.factors)

    @property
    def takes_attribute(self) -> bool:
        """Whether it still needs an attribute."""
        return any(factor.takes_attribute for factor in self.factors)

    def with_attribute(self, attribute: str) -> Measure:
        """Return the measure with this attribute wherever it needs one."""
        return Measure(
            tuple(
                factor.with_values(attribute=attribute) if factor.takes_attribute else factor
                for factor in self.factors
            )
        )

    def for_target(self, rule: TargetRule) -> Measure:
        """Return the measure with the policy for the unknown that a target implies."""
        return Measure(tuple(factor.for_target(rule) for factor in self.factors))

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


def _product(*scores: Score) -> None:
    """The product of measures, query by query, such as nDCG@20×AWRF@20."""


PRODUCT = Kind(
    "×",
    "nDCG@20×AWRF@20(attribute=gender)",
    frozenset(),
    "the high end is best",
    "0 to 1 where its factors are",
    {},
    _product,
)


def parse_measures(texts: Any) -> list[Measure]:
    """Read several measures; each is kept once, in the order given.

    Args:
        texts: Measures separated by commas; or a sequence of these, of measures, or of measures of
            ir_measures, which are read by their text.

    Raises:
        InputError: A text is not a measure; the message says which measures exist.
    """
    single = isinstance(texts, str | Measure) or _is_of_ir_measures(texts)
    if not single and not isinstance(texts, Iterable):
        raise InputError(
            f"Measures cannot be of type {type(texts).__name__}; write for instance "
            "nDCG@20,AWRF@20, or give a list of measures."
        )
    measures: list[Measure] = []
    for given in [texts] if single else texts:
        if isinstance(given, Measure):
            measures.append(given)
        elif isinstance(given, str) or _is_of_ir_measures(given):
            parts = filter(str.strip, _split(str(given), ","))
            measures += map(parse_measure, parts)
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
    kind = _BY_NAME.get(match["name"].lower())
    if kind is None:
        near = difflib.get_close_matches(match["name"].lower(), _BY_NAME, 1)
        meant = f"did you mean {_BY_NAME[near[0]].name}? The" if near else "the"
        there = f"{meant} measures are {', '.join(KINDS)}"
        raise InputError(f"There is no measure '{one_line(match['name'])}'; {there}.")
    if match["before"] and match["after"]:
        raise InputError(f"{quoted} has two lists of parameters; join them.")
    if match["k"] is not None and not re.fullmatch(r"[0-9]{1,9}", match["k"]):
        raise InputError(f"The cut-off of {quoted} is not a whole number; write {kind.name}@20.")
    k = None if match["k"] is None else int(match["k"])
    given: dict[str, Any] = {}
    listed = (match["before"] or match["after"] or "()")[1:-1]
    for item in _split(listed, ",") if listed.strip() else []:
        name, _, value = map(str.strip, item.partition("="))
        if not value:
            raise InputError(
                f"'{one_line(item.strip())}' in {quoted} is not a parameter; write name=value."
            )
        if name not in kind.takes:
            has = f"it has {', '.join(kind.takes) or 'none'}"
            raise InputError(f"{kind.name} has no parameter '{one_line(name)}'; {has}.")
        if name in given:
            raise InputError(f"{quoted} has the parameter {name} twice; keep one.")
        given[name] = _read(name, value, k, quoted)
    return Factor(kind.name, k, tuple(given.items()))


def _read(name: str, value: str, k: int | None, quoted: str) -> Any:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        value = value[1:-1].replace('""', '"')
    if name == "discount" and value == "top_k" and k is not None:
        return Discount("top_k", k)
    try:
        return _READERS.get(name, str)(value)
    except FairqrError as error:
        raise InputError(f"In {quoted}: {error}") from None
    except ValueError:
        raise InputError(
            f"In {quoted} the {name} is not a number; write one such as 0.01."
        ) from None


def _split(text: str, separators: str) -> list[str]:
    """Split where a separator stands outside of parentheses and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for place, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in "()":
            depth += 1 if character == "(" else -1
            if depth < 0:
                break
        elif depth == 0 and character in separators:
            parts.append(text[start:place])
            start = place + 1
    if depth or quoted:
        what = "quote" if quoted else "parenthesis"
        raise InputError(f"'{one_line(text)}' has an unmatched {what}; add or remove one.")
    return [*parts, text[start:]]


def _value_text(value: object) -> str:
    """Write the value of a parameter so that it can be read back; quoted if it is ambiguous."""
    text = repr(value).removesuffix(".0") if isinstance(value, float) else str(value)
    plain = text == text.strip() and text and text.isprintable()
    nested = text.endswith(")") and "(" in text and not _QUOTED & set(text[:-1].replace("(", "", 1))
    product = not _QUOTED & set(text.replace("×", ""))
    if plain and (nested or product):
        return text
    return '"' + text.replace('"', '""') + '"'
