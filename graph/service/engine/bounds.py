"""The caps on what one request may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairqr.agents.generators import INPUT_TOKENS
from fairqr.base.errors import CapError
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.service.configuration import Caps
from fairqr.graph.service.engine.requests import RunRequest
from fairqr.graph.service.records import Kind

_COMMON = {"k": "k", "depth": "depth", "max_iterations": "max_iterations"}
_CAPPED: Mapping[Kind, Mapping[str, str]] = {
    "search": _COMMON,
    "answer": {**_COMMON, "samples": "samples", "documents": "documents"},
    "probe": {**_COMMON, "depth": "probe_documents", "pairs": "pairs"},
}
"""The capped parameters of each kind of run, and the names of their caps."""

_BUDGET = ("model_calls", "tokens", "seconds")


def bounded(kind: Kind, asked: RunRequest, caps: Caps) -> dict[str, Any]:
    """Return the values of a request, each within its cap.

    We lower a default above its cap instead of refusing it, and fill in a missing budget.

    Raises:
        CapError: A given value exceeds its cap.
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
    """Reserve what the answers may cost; the rest is the budget of the search before them.

    Args:
        context: The context of the run.
        judged: Whether a model also judges each document.
        written: The most tokens of one answer.
        caps: The caps of the service.

    Returns:
        The context with the remaining budget.

    Raises:
        CapError: The answers may cost more than a cap allows, or the hypothesis is too long.
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
                f"this service allows at most {limit:,} ({cap}); ask for fewer samples or "
                "documents.",
            )
        left[cap] = limit - number if own is None else min(own, limit - number)
    return context.model_copy(update={"budget": budget.model_copy(update=left)})


def check_text(text: str, caps: Caps, name: str = "query") -> None:
    """Check the length of a query, a question, or another text with the given name.

    Raises:
        CapError: It is too long.
    """
    if len(text) > caps.query_characters:
        raise CapError(
            "query_characters",
            caps.query_characters,
            f"The {name} has {len(text):,} characters, and this service allows at most "
            f"{caps.query_characters:,} (query_characters); shorten it.",
        )


def check_bound(name: str, value: float | None, cap: str, limit: float) -> None:
    """Check that a value is within its cap; None always is.

    Raises:
        CapError: It is not.
    """
    if value is not None and value > limit:
        raise CapError(
            cap,
            limit,
            f"'{name}' is {value:,}, and this service allows at most {limit:,} ({cap}); ask for "
            "less.",
        )
