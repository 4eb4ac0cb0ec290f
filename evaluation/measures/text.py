"""Measures as text: ``nDCG@20``, ``AWRF@20(attribute=gender,unit=bits)``, ``nDCG@20×AWRF@20``.

A measure is its name, ``@`` and a cut-off if it has one, and parameters in parentheses, which can
also precede the cut-off. Put values with commas, parentheses or the like in double quotes, and
write a quote in them twice. ``×`` and ``*`` are the same.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fairqr.base.errors import FairqrError, InputError, one_line
from fairqr.evaluation.measures.base import Measure
from fairqr.evaluation.measures.expected import EED, EEL, EER
from fairqr.evaluation.measures.groups import AWRF, JS, KL, NDKL, Exposure, ExposureRatio
from fairqr.evaluation.measures.product import Product
from fairqr.evaluation.measures.relevance import AP, NDCG, RR, Precision, Recall
from fairqr.retrieval.fairness.exposure import Discount

MEASURES: tuple[type[Measure], ...] = (
    NDCG,
    Precision,
    Recall,
    AP,
    RR,
    AWRF,
    JS,
    KL,
    NDKL,
    Exposure,
    ExposureRatio,
    EED,
    EER,
    EEL,
)
"""All measures but the product."""

_BY_NAME = {n.lower(): measure for measure in MEASURES for n in (measure.name, *measure.aliases)}
_READERS: Mapping[str, Callable[[str], Any]] = {"discount": Discount.parse, "smoothing": float}
_SHAPE = re.compile(
    r"(?P<name>[A-Za-z-]+)\s*(?P<before>\(.*?\))?\s*(?:@\s*(?P<k>[^\s()]*))?\s*(?P<after>\(.*\))?",
    re.DOTALL,
)


def parse_measures(texts: Any) -> list[Measure]:
    """Read several measures; each is kept once, in the order given.

    Args:
        texts: Measures separated by commas; or a sequence of these, of measures, or of measures of
            ir_measures, which are read by their text.

    Raises:
        InputError: A text is not a measure; the message says which measures exist.
    """
    measures: list[Measure] = []
    single = isinstance(texts, str | Measure) or _is_of_ir_measures(texts)
    if not single and not isinstance(texts, Iterable):
        raise InputError(
            f"Measures cannot be of type {type(texts).__name__}; write for instance "
            "nDCG@20,AWRF@20, or give a list of measures."
        )
    for given in [texts] if single else texts:
        if isinstance(given, Measure):
            measures.append(given)
            continue
        text = str(given) if _is_of_ir_measures(given) else given
        if not isinstance(text, str):
            raise InputError(
                f"A measure cannot be of type {type(given).__name__}; write it as text, such as "
                "nDCG@20."
            )
        for part in _split(text, ","):
            if part.strip():
                measures.append(parse_measure(part))
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
    factors = [_single(factor) for factor in _split(text, "×*")]
    return factors[0] if len(factors) == 1 else Product(factors=tuple(factors))


def _single(text: str) -> Measure:
    match = _SHAPE.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"'{one_line(text)}' is not a measure; write nDCG@20 or AWRF@20(unit=bits)."
        )
    measure = _BY_NAME.get(match["name"].lower())
    if measure is None:
        raise InputError(_no_such(match["name"]))
    if match["before"] and match["after"]:
        raise InputError(f"'{one_line(text)}' has two lists of parameters; join them.")
    given: dict[str, Any] = {}
    if match["k"] is not None:
        if not re.fullmatch(r"[0-9]{1,9}", match["k"]):
            raise InputError(
                f"The cut-off of '{one_line(text)}' is not a whole number; write {measure.name}@20."
            )
        given["k"] = int(match["k"])
    listed = (match["before"] or match["after"] or "()")[1:-1]
    for item in _split(listed, ",") if listed.strip() else []:
        name, value = _parameter(item, measure, text)
        if name in given:
            raise InputError(f"'{one_line(text)}' has the parameter {name} twice; keep one.")
        given[name] = _read(name, value, given.get("k"), text)
    return measure(**given)


def _parameter(item: str, measure: type[Measure], text: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    name, value = name.strip(), _unquoted(value.strip())
    known = [field.name for field in dataclasses.fields(measure) if field.name != "k"]
    if not equals or not value:
        raise InputError(
            f"'{one_line(item.strip())}' in '{one_line(text)}' is not a parameter; "
            "write name=value."
        )
    if name not in known:
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise InputError(f"{measure.name} has no parameter '{one_line(name)}'; {has}.")
    return name, value


def _read(name: str, value: str, k: int | None, text: str) -> Any:
    if name == "discount" and value == "top_k" and k is not None:
        return Discount("top_k", k)
    try:
        return _READERS.get(name, str)(value)
    except FairqrError as error:
        raise InputError(f"In '{one_line(text)}': {error}") from None
    except ValueError:
        raise InputError(
            f"In '{one_line(text)}' the {name} is not a number; write one such as 0.01."
        ) from None


def _no_such(name: str) -> str:
    there = ", ".join(measure.name for measure in MEASURES)
    near = difflib.get_close_matches(name.lower(), _BY_NAME, 1)
    meant = (
        f"did you mean {_BY_NAME[near[0]].name}? The measures are" if near else "the measures are"
    )
    return f"There is no measure '{one_line(name)}'; {meant} {there}."


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return value[1:-1].replace('""', '"')
    return value


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
