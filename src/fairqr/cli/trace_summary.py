"""The summary of a recorded run: its query, how it ended, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fairqr.cli.trace_reading import RecordedSpan

RUN = "invoke_workflow fairqr"
_KINDS = {"fairqr.summarise": "answer", "fairqr.conclude": "probe", "fairqr.rerank": "search"}
"""The steps that end a part of a run, the last first."""


def summary_of(spans: Sequence[RecordedSpan]) -> dict[str, Any]:
    """Return the summary of a recorded run; its attributes may hold anything.

    Args:
        spans: At least one.

    Returns:
        When it ``started``, in seconds since the epoch; how many ``seconds`` it took; its ``kind``:
        ``search``, ``answer``, ``probe`` or ``other``; its ``status``: ``ok``, the class of the
        error that ended it, or ``unfinished``; the ``query``, if content was recorded; the
        ``method``, and the ``models``; ``model_calls``, ``cached_calls``, ``input_tokens`` and
        ``output_tokens``; the divergence ``before`` and ``after``, in nats; and the
        ``stop_reason``. A value that the record lacks is None or empty.
    """
    ordered = sorted(spans, key=lambda span: span["start"])
    names = [span["name"] for span in ordered]
    # The last step that says something wins; each step at an end counts what those before it cost.
    said: dict[str, Any] = {}
    for span in ordered:
        if span["name"].startswith(("fairqr.", RUN)):
            said |= span["attributes"]
    calls = [it["attributes"] for it in ordered if "gen_ai.request.model" in it["attributes"]]
    divergences = [it for span in ordered if (it := _divergence(span)) is not None]

    def tokens(kind: str) -> float:
        known = _number(said.get(f"fairqr.{kind}"))
        each = (_number(call.get(f"gen_ai.usage.{kind}")) or 0 for call in calls)
        return sum(each) if known is None else known

    listed = said.get("fairqr.models")
    named = listed if isinstance(listed, list) else []
    models = [it.partition("=")[2] for it in named if isinstance(it, str)]
    ended = max(span["start"] + span["milliseconds"] / 1000 for span in ordered)
    before = _number(said.get("fairqr.baseline_divergence"))
    return {
        "started": ordered[0]["start"],
        "seconds": max(0.0, ended - ordered[0]["start"]),
        "kind": next((kind for step, kind in _KINDS.items() if step in names), "other"),
        "status": _status(ordered),
        "query": _text(said.get("fairqr.query")),
        "method": _text(said.get("fairqr.method")),
        "models": list(dict.fromkeys(models)),
        # A run that was killed does not sum up.
        "model_calls": _number(said.get("fairqr.model_calls")) or len(calls),
        "cached_calls": _number(said.get("fairqr.cached_calls")) or 0,
        "input_tokens": tokens("input_tokens"),
        "output_tokens": tokens("output_tokens"),
        "before": next(iter(divergences), None) if before is None else before,
        "after": divergences[-1] if divergences else None,
        "stop_reason": _text(said.get("fairqr.stop_reason")),
    }


def _status(spans: Sequence[RecordedSpan]) -> str:
    if runs := [span for span in spans if span["name"] == RUN]:
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


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e300 and not math.isnan(value) else None
