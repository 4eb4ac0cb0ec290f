"""From options that are given one by one to the context of a run that answers or probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fairqr.errors import InputError
from fairqr.graph.answering_context import AnswerSettings
from fairqr.graph.context import Context, make_context
from fairqr.graph.probing_context import ProbeSettings

__all__ = ["answer_context", "probe_context", "search_context"]


def search_context(
    options: Mapping[str, Any], attribute: str | Sequence[str] | None = None
) -> Context:
    """Return the context of a search.

    Args:
        options: The values of :class:`Context`; those that are None count as not given.
        attribute: One attribute or several, instead of ``attributes`` among the options.

    Raises:
        InputError: One is wrong; the message names it and what is allowed.
    """
    return make_context(**_with_attributes(options, attribute))


def answer_context(
    options: Mapping[str, Any], attribute: str | Sequence[str] | None = None
) -> Context:
    """Return the context of a run that answers a question.

    Args:
        options: The values of :class:`AnswerSettings` and of :class:`Context`. ``temperature`` is
            that of the answer, and the method is ``plain`` where nothing else is said.
        attribute: As of :func:`search_context`.

    Raises:
        InputError: One is wrong; the message names it and what is allowed.
    """
    context = _with_attributes(options, attribute)
    context["method"] = context.get("method") or "plain"
    answer = _taken_out(context, AnswerSettings)
    return make_context(**context, answer=answer)


def probe_context(options: Mapping[str, Any], attribute: str, protected: str) -> Context:
    """Return the context of a run that probes the model that ranks.

    Args:
        options: The values of :class:`ProbeSettings` and of :class:`Context`. ``depth`` is how many
            of the ``k`` documents take part, ``seed`` that of the probe, and the method is
            ``plain`` where nothing else is said.
        attribute: What tells the groups apart.
        protected: Which of them count as protected: ``female``, ``not Europe``.

    Raises:
        InputError: One is wrong; the message names it and what is allowed.
    """
    if "probe" in options:
        raise InputError("The parameters of a probe are given one by one, without 'probe'.")
    context = _with_attributes(options, attribute)
    context["method"] = context.get("method") or "plain"
    probe = _taken_out(context, ProbeSettings)
    return make_context(**context, probe={**probe, "attribute": attribute, "protected": protected})


def _taken_out(
    options: dict[str, Any], settings: type[AnswerSettings] | type[ProbeSettings]
) -> dict[str, Any]:
    """Take the values of some settings out of the options; those that are None are left out."""
    found = {name: options.pop(name) for name in settings.model_fields if name in options}
    return {name: value for name, value in found.items() if value is not None}


def _with_attributes(
    options: Mapping[str, Any], attribute: str | Sequence[str] | None
) -> dict[str, Any]:
    if attribute is None:
        return dict(options)
    return {**options, "attributes": [attribute] if isinstance(attribute, str) else [*attribute]}
