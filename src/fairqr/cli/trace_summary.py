"""The summary of a recorded run: its query, how it ended, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairqr.cli.trace_reading import RecordedSpan

RUN = "invoke_workflow fairqr"
_KINDS = {"fairqr.summarise": "answer", "fairqr.conclude": "probe", "fairqr.rerank": "search"}
"""The steps that end a part of a run, the last first."""


@dataclass(slots=True)
class RunSummary:
    """A recorded run. A value that the record lacks is None or empty.

    Attributes:
        started: In seconds since the epoch.
        seconds: How long it took.
        kind: ``search``, ``answer``, ``probe``, or ``other``.
        status: ``ok``, the class of the error that ended it, or ``unfinished``.
        query: The query, if content was recorded.
        models: The models by their role.
        prompts: The version and sha256 of each prompt, by id.
        before, after: The divergence of the plain retrieval, and of the result, in nats.
        stop_reason: Why the loop ended.
    """

    started: float
    seconds: float
    kind: str
    status: str
    query: str | None
    corpus: str | None
    method: str | None
    attributes: list[str]
    target: str | None
    k: float | None
    model_calls: float
    cached_calls: float
    input_tokens: float
    output_tokens: float
    before: float | None
    after: float | None
    stop_reason: str | None
    models: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)


def summary_of(spans: Sequence[RecordedSpan]) -> RunSummary:
    """Return the summary of a recorded run; its attributes may hold anything.

    Args:
        spans: At least one.
    """
    ordered = sorted(spans, key=lambda span: span["start"])
    names = [span["name"] for span in ordered]
    last = next((name for name in _KINDS if name in names), None)
    started = ordered[0]["start"]
    ended = max(span["start"] + span["milliseconds"] / 1000 for span in ordered)
    # The last step that says something wins; each step at an end counts what those before it cost.
    said: dict[str, Any] = {}
    for span in ordered:
        if span["name"].startswith(("fairqr.", RUN)):
            said |= span["attributes"]
    calls = [it["attributes"] for it in ordered if "gen_ai.request.model" in it["attributes"]]
    divergences = [it for span in ordered if (it := _divergence(span)) is not None]
    before = _number(said.get("fairqr.baseline_divergence"))
    return RunSummary(
        started=started,
        seconds=max(0.0, ended - started),
        kind=_KINDS[last] if last else "other",
        status=_status(ordered),
        query=_text(said.get("fairqr.query")),
        corpus=_text(said.get("fairqr.corpus")),
        method=_text(said.get("fairqr.method")),
        attributes=_texts(said.get("fairqr.attributes")),
        target=next((_text(it["attributes"].get("fairqr.target")) for it in _runs(ordered)), None),
        k=_number(said.get("fairqr.k")),
        # A run that was killed does not sum up.
        model_calls=_number(said.get("fairqr.model_calls")) or len(calls),
        cached_calls=_number(said.get("fairqr.cached_calls")) or 0,
        input_tokens=_sum(said, calls, "input_tokens"),
        output_tokens=_sum(said, calls, "output_tokens"),
        before=before if before is not None else next(iter(divergences), None),
        after=divergences[-1] if divergences else None,
        stop_reason=_text(said.get("fairqr.stop_reason")),
        models=_named(ordered, "fairqr.models") or _asked(calls),
        prompts=_named(ordered, "fairqr.prompts"),
    )


def _runs(spans: Sequence[RecordedSpan]) -> list[RecordedSpan]:
    return [span for span in spans if span["name"] == RUN]


def _status(spans: Sequence[RecordedSpan]) -> str:
    if runs := _runs(spans):
        # A run that was resumed ended as its last part did.
        resumed = [run["attributes"].get("fairqr.resumed") is True for run in runs]
        last = max((at for at, is_resumed in enumerate(resumed) if is_resumed), default=0)
        return next((span["status"] for span in runs[last:] if span["status"] != "ok"), "ok")
    # The span of a run is written when it ends.
    inside = any(span["name"].startswith("fairqr.") and span["parent"] for span in spans)
    return "unfinished" if inside else "ok"


def _divergence(span: RecordedSpan) -> float | None:
    for event in span["events"]:
        if event["attributes"].get("gen_ai.evaluation.name") == "divergence":
            return _number(event["attributes"].get("gen_ai.evaluation.score.value"))
    return None


def _sum(said: Mapping[str, Any], calls: Sequence[Mapping[str, Any]], tokens: str) -> float:
    known = _number(said.get(f"fairqr.{tokens}"))
    if known is not None:
        return known
    return sum(_number(call.get(f"gen_ai.usage.{tokens}")) or 0 for call in calls)


def _asked(calls: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    if not calls:
        return {}
    first = calls[0]
    return {"asked": f"{first.get('gen_ai.provider.name')}:{first['gen_ai.request.model']}"}


def _named(spans: Sequence[RecordedSpan], key: str) -> dict[str, str]:
    """Return what steps list as ``name=value``."""
    listed = [text for span in spans for text in _texts(span["attributes"].get(key))]
    return {name: value for name, _, value in (text.partition("=") for text in listed)}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None
