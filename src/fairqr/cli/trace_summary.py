"""What a recorded run was about, what it decided, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairqr.cli.trace_reading import Span

__all__ = ["RunSummary", "TraceRound", "summary_of"]

RUN = "invoke_workflow fairqr"
_KINDS = {"fairqr.summarise": "answer", "fairqr.conclude": "probe", "fairqr.rerank": "search"}
"""The steps that end a part of a run, the last first."""


@dataclass(slots=True)
class TraceRound:
    """A round of a run.

    Attributes:
        divergence: Of its list from the target, in nats.
        exposure: By attribute and group.
        lacking: The groups that lacked exposure then, for which queries were refined.
        keywords: By ``attribute.group``; empty where content was not recorded.
        statuses: Of the refinements, by ``attribute=group``.
    """

    divergence: float | None = None
    exposure: dict[str, Any] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    keywords: dict[str, list[str]] = field(default_factory=dict)
    statuses: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class RunSummary:
    """A recorded run. What the record does not say is None or empty.

    Attributes:
        started: In seconds since the epoch.
        seconds: How long it took.
        kind: ``search``, ``answer``, ``probe``, or ``other``.
        status: ``ok``, the class of the error that ended it, or ``unfinished``.
        query: Recorded with content only.
        sampling: Of an answer: alpha, samples, documents, seed.
        models: By what they did.
        prompts: By id the version, and sha256.
        model_calls, cached_calls, input_tokens, output_tokens: What it cost.
        before, after: The divergence of the plain retrieval, and of the result, in nats.
        stop_reason: Why the loop ended.
        best_round: The index of the round whose lists the ranking comes from.
        findings: Of an answer how evenly documents were read and used, of a probe its verdict.
        rounds: In order; the first is the plain retrieval.
    """

    started: float
    seconds: float
    kind: str
    status: str
    query: str | None = None
    corpus: str | None = None
    method: str | None = None
    attributes: list[str] = field(default_factory=list)
    target: str | None = None
    k: float | None = None
    sampling: dict[str, float] = field(default_factory=dict)
    models: dict[str, str] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    model_calls: float = 0
    cached_calls: float | None = None
    input_tokens: float = 0
    output_tokens: float = 0
    before: float | None = None
    after: float | None = None
    stop_reason: str | None = None
    best_round: float | None = None
    findings: dict[str, float | str] = field(default_factory=dict)
    rounds: list[TraceRound] = field(default_factory=list)


def summary_of(spans: Sequence[Span]) -> RunSummary:
    """Return the summary of a recorded run; anybody may have written what its attributes hold.

    Args:
        spans: At least one.
    """
    ordered = sorted(spans, key=lambda span: float(span["start"]))
    names = [span["name"] for span in ordered]
    begun = float(ordered[0]["start"])
    ended = max(float(span["start"]) + float(span["milliseconds"]) / 1000 for span in ordered)
    last = next((name for name in _KINDS if name in names), None)
    runs = [span for span in ordered if span["name"] == RUN]
    told = RunSummary(
        started=begun,
        seconds=max(0.0, ended - begun),
        kind=_KINDS[last] if last else "other",
        status=_status(ordered, runs),
        rounds=list(_rounds(ordered)),
    )
    for span in runs[:1]:
        _asked(told, span["attributes"])
    _cost(told, ordered)
    for span in ordered:
        if span["name"] == "fairqr.begin":
            told.query = _text(span["attributes"].get("fairqr.query"))
        elif span["name"] == "fairqr.sample":
            told.sampling |= _numbers(span["attributes"], "seed")
        elif span["name"] in _KINDS:
            _ended(told, span)
    if told.before is None and told.rounds:
        told.before, told.after = told.rounds[0].divergence, told.rounds[-1].divergence
    return told


def _status(spans: Sequence[Span], runs: Sequence[Span]) -> str:
    if runs:
        # One that was gone on with later came to the end that it then came to.
        last = max((at for at, it in enumerate(runs) if _is_resumed(it)), default=0)
        return next((span["status"] for span in runs[last:] if span["status"] != "ok"), "ok")
    # The span of a run is written when it ends.
    inside = any(span["name"].startswith("fairqr.") and span["parent"] for span in spans)
    return "unfinished" if inside else "ok"


def _is_resumed(span: Span) -> bool:
    return span["attributes"].get("fairqr.resumed") is True


def _asked(told: RunSummary, attributes: Mapping[str, Any]) -> None:
    told.method = _text(attributes.get("fairqr.method"))
    told.target = _text(attributes.get("fairqr.target"))
    told.attributes = _texts(attributes.get("fairqr.attributes"))
    told.k = _number(attributes.get("fairqr.k"))
    told.sampling = _numbers(attributes, "alpha", "samples", "documents")


def _cost(told: RunSummary, spans: Sequence[Span]) -> None:
    """Sum up what was asked of models, for runs that do not say it themselves at their end."""
    for span in spans:
        held = span["attributes"]
        if "gen_ai.request.model" not in held:
            continue
        told.model_calls += 1
        told.input_tokens += _number(held.get("gen_ai.usage.input_tokens")) or 0
        told.output_tokens += _number(held.get("gen_ai.usage.output_tokens")) or 0
        provider, model = held.get("gen_ai.provider.name"), held["gen_ai.request.model"]
        told.models.setdefault("asked", f"{provider}:{model}")
        if id_ := _text(held.get("gen_ai.prompt.name")):
            version = f"{held.get('gen_ai.prompt.version')} {held.get('fairqr.prompt.sha256')}"
            told.prompts[id_] = version


def _ended(told: RunSummary, span: Span) -> None:
    """Take what a step at the end says; each counts what those before it cost, too."""
    held = span["attributes"]
    told.corpus = _text(held.get("fairqr.corpus")) or told.corpus
    told.stop_reason = _text(held.get("fairqr.stop_reason")) or told.stop_reason
    best = _number(held.get("fairqr.best_iteration"))
    told.best_round = told.best_round if best is None else best
    for text in _texts(held.get("fairqr.models")):
        told.models.pop("asked", None)
        what, _, name = text.partition("=")
        told.models[what] = name
    for text in _texts(held.get("fairqr.prompts")):
        id_, _, version = text.partition("=")
        told.prompts[id_] = version
    calls = _number(held.get("fairqr.model_calls"))
    if calls is not None:
        told.model_calls = calls
        told.cached_calls = _number(held.get("fairqr.cached_calls"))
        told.input_tokens = _number(held.get("fairqr.input_tokens")) or 0
        told.output_tokens = _number(held.get("fairqr.output_tokens")) or 0
    told.findings |= _numbers(held, "attribution_rate")
    if verdict := _text(held.get("fairqr.verdict")):
        told.findings["verdict"] = verdict
    for event in span["events"]:
        said = event["attributes"]
        if event["name"] == "divergence":
            told.before, told.after = _number(said.get("baseline")), _number(said.get("value"))
        elif event["name"] == "exposure":
            named = {"disparity": "disparity", "attributed": "attributed disparity"}
            found = {named[key]: _number(said.get(key)) for key in named}
            told.findings |= {name: it for name, it in found.items() if it is not None}


def _rounds(spans: Sequence[Span]) -> Iterator[TraceRound]:
    """Yield the rounds: each begins where a list is measured."""
    current: TraceRound | None = None
    for span in spans:
        if span["name"] == "fairqr.measure":
            if current is not None:
                yield current
            current = TraceRound()
            for event in span["events"]:
                if event["name"] == "divergence":
                    current.divergence = _number(event["attributes"].get("value"))
                    exposure = event["attributes"].get("exposure")
                    current.exposure = exposure if isinstance(exposure, dict) else {}
        elif current is not None and span["name"] == "fairqr.choose_group":
            current.lacking = _texts(span["attributes"].get("fairqr.groups"))
        elif current is not None and span["name"] == "fairqr.refine":
            _refined(current, span)
    if current is not None:
        yield current


def _refined(current: TraceRound, span: Span) -> None:
    for event in span["events"]:
        if event["name"] == "refinement":
            held = event["attributes"]
            current.statuses[f"{held.get('attribute')}={held.get('group')}"] = str(
                held.get("status")
            )
    for key, value in span["attributes"].items():
        if key.startswith("fairqr.keywords."):
            current.keywords[key.removeprefix("fairqr.keywords.")] = _texts(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _numbers(held: Mapping[str, Any], *names: str) -> dict[str, float]:
    """Return the numbers among attributes of ours, by names for people."""
    found = {name.replace("_", " "): _number(held.get(f"fairqr.{name}")) for name in names}
    return {name: number for name, number in found.items() if number is not None}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None
