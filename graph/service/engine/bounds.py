"""The caps on what one request may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairqr.errors import CapError
from fairqr.graph.answering_context import AnswerSettings
from fairqr.graph.service.configuration import Caps
from fairqr.graph.service.engine.requests import RunRequest
from fairqr.graph.service.records import Kind

__all__ = ["bounded", "check_answers", "check_text"]

_COMMON = {"k": "k", "depth": "depth", "max_iterations": "max_iterations"}
_CAPPED: Mapping[Kind, Mapping[str, str]] = {
    "search": _COMMON,
    "answer": {**_COMMON, "samples": "samples", "documents": "documents"},
    "probe": {**_COMMON, "depth": "probe_documents", "pairs": "pairs"},
}
"""For each kind the parameters that are capped, and their caps."""

_BUDGET = ("model_calls", "tokens", "seconds")


def bounded(kind: Kind, asked: RunRequest, caps: Caps) -> dict[str, Any]:
    """Return the values of a request, each within its cap.

    A default above the cap is lowered to it, and so is a budget that is not given: what nobody
    asked for is no reason to refuse.

    Raises:
        CapError: More is asked for.
    """
    values = asked.model_dump(mode="json")
    given = asked.model_fields_set
    for name, cap in _CAPPED[kind].items():
        limit = getattr(caps, cap)
        if name in given:
            _check(name, values[name], cap, limit)
        elif values[name] is not None:
            values[name] = min(values[name], limit)
    _check("ranking.depth", values["ranking"]["depth"], "depth", caps.depth)
    if kind == "search" and (probe := values["probe"]):
        _check("probe.depth", probe["depth"], "probe_documents", caps.probe_documents)
        if "pairs" in asked.probe.model_fields_set:  # type: ignore[attr-defined]
            _check("probe.pairs", probe["pairs"], "pairs", caps.pairs)
        probe["pairs"] = min(probe["pairs"], caps.pairs)
        probe["depth"] = probe["depth"] or min(values["k"], caps.probe_documents)
        if probe["depth"] < 2:
            probe["depth"] = None
    if kind == "probe" and values["depth"] is None and values["k"] > caps.probe_documents:
        values["depth"] = caps.probe_documents
    for name in _BUDGET:
        limit = getattr(caps, name)
        _check(f"budget.{name}", values["budget"][name], name, limit)
        if values["budget"][name] is None:
            values["budget"][name] = limit
    return values


def check_answers(settings: AnswerSettings, judged: bool, caps: Caps) -> None:
    """Check how many questions to a model answering may take; the run's budget does not bound them.

    Args:
        settings: Of the answer.
        judged: Whether a model is asked about each document too.
        caps: Of the service.

    Raises:
        CapError: More than a run may ask, or what stands around each answer is too long.
    """
    check_text(settings.hypothesis, caps, "hypothesis")
    calls = settings.samples * (1 + settings.documents * judged)
    if calls > caps.model_calls:
        raise CapError(
            "model_calls",
            caps.model_calls,
            f"{settings.samples:,} samples may take {calls:,} model calls, and this service allows "
            f"{caps.model_calls:,} at the most (model_calls); ask for fewer samples or documents.",
        )


def check_text(text: str, caps: Caps, name: str = "query") -> None:
    """Check how long a query or a question is, or another text of that name.

    Raises:
        CapError: Too long.
    """
    if len(text) > caps.query_characters:
        raise CapError(
            "query_characters",
            caps.query_characters,
            f"The {name} has {len(text):,} characters; at most {caps.query_characters:,} are taken "
            "(query_characters).",
        )


def _check(name: str, value: float | None, cap: str, limit: float) -> None:
    if value is not None and value > limit:
        raise CapError(
            cap,
            limit,
            f"'{name}' is {value:,}, and this service allows {limit:,} at the most ({cap}); "
            "ask for less.",
        )
