"""The caps on what one request may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairqr.agents.chat_generator import INPUT_TOKENS
from fairqr.base.errors import CapError
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.service.configuration import Caps
from fairqr.graph.service.engine.requests import RunRequest
from fairqr.graph.service.records import Kind

__all__ = ["bounded", "check_bound", "check_text", "with_answers"]

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
            check_bound(name, values[name], cap, limit)
        elif values[name] is not None:
            values[name] = min(values[name], limit)
    check_bound("ranking.depth", values["ranking"]["depth"], "depth", caps.depth)
    if kind == "probe" and values["depth"] is None and values["k"] > caps.probe_documents:
        values["depth"] = caps.probe_documents
    for name in _BUDGET:
        limit = getattr(caps, name)
        check_bound(f"budget.{name}", values["budget"][name], name, limit)
        if values["budget"][name] is None:
            values["budget"][name] = limit
    return values


def with_answers(context: AnswerContext, judged: bool, written: int, caps: Caps) -> AnswerContext:
    """Check how much answering may take of models, and put it by: the run's budget bounds the rest.

    Args:
        context: Of the run.
        judged: Whether a model is asked about each document too.
        written: Tokens of one answer, at the most.
        caps: Of the service.

    Returns:
        The context, with the budget of what comes before the answers.

    Raises:
        CapError: More than a run may ask, or what stands around each answer is too long.
    """
    settings, budget = context.answer, context.budget
    check_text(settings.hypothesis, caps, "hypothesis")
    needed = {
        "model_calls": settings.samples * (1 + settings.documents * judged),
        "tokens": settings.samples * (INPUT_TOKENS + written),
    }
    left: dict[str, int] = {}
    for cap, number in needed.items():
        limit, own = getattr(caps, cap), getattr(budget, cap)
        if number > limit:
            raise CapError(
                cap,
                limit,
                f"{settings.samples:,} samples may take {number:,} {cap.replace('_', ' ')}, and "
                f"this service allows {limit:,} at the most ({cap}); ask for fewer samples or "
                "documents.",
            )
        left[cap] = limit - number if own is None else min(own, limit - number)
    return context.model_copy(update={"budget": budget.model_copy(update=left)})


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


def check_bound(name: str, value: float | None, cap: str, limit: float) -> None:
    """Check that a value, if it is given, is within its cap.

    Raises:
        CapError: It is not.
    """
    if value is not None and value > limit:
        raise CapError(
            cap,
            limit,
            f"'{name}' is {value:,}, and this service allows {limit:,} at the most ({cap}); "
            "ask for less.",
        )
