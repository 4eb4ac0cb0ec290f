"""A recorded run as a tree on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text
from rich.tree import Tree

from fairqr.base.telemetry import EVALUATION
from fairqr.cli.common import printable
from fairqr.cli.terminal import counted
from fairqr.cli.trace_reading import Event, RecordedSpan

INPUT, OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"

# Shown at the start of a span's line, or not useful to people.
_HIDDEN = {
    "error.type",
    "gen_ai.data_source.id",
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.output.type",
    "gen_ai.request.model",
    INPUT,
    OUTPUT,
    "gen_ai.workflow.name",
    "gen_ai.prompt.name",
    "gen_ai.prompt.version",
    "fairqr.prompt.sha256",
    "fairqr.model",
}


def trees_of(spans: Sequence[RecordedSpan]) -> Iterator[Tree]:
    """Yield a tree for each span that has no parent in the file, in order of time."""
    children: dict[str | None, list[RecordedSpan]] = {}
    known = {span["span"] for span in spans}
    for span in sorted(spans, key=lambda span: span["start"]):
        # A run that was killed has spans whose parents were never written.
        parent = span["parent"] if span["parent"] in known else None
        children.setdefault(parent, []).append(span)
    for root in children.pop(None, []):
        tree = Tree(_line(root))
        _grow(tree, root, children)
        yield tree


def cost_text(spans: Sequence[RecordedSpan]) -> str:
    """Return what all questions to models cost together."""
    asked = [span["attributes"] for span in spans if INPUT in span["attributes"]]
    tokens = [sum(_count(it.get(key)) for it in asked) for key in (INPUT, OUTPUT)]
    return f"{counted(len(asked), 'question')} to models, {tokens[0]} + {tokens[1]} tokens"


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 10**12 else 0


def _grow(tree: Tree, span: RecordedSpan, children: dict[str | None, list[RecordedSpan]]) -> None:
    for key, value in span["attributes"].items():
        if key not in _HIDDEN:
            text = f"{key.removeprefix('fairqr.')}: {value_text(value)}"
            tree.add(Text(printable(text), style="dim"))
    for event in span["events"]:
        tree.add(Text(printable(f"• {_event_text(event)}"), style="cyan"))
    # Taken out, so that spans which name each other as parents cannot go round in circles.
    for child in children.pop(span["span"], []):
        _grow(tree.add(_line(child)), child, children)


def _event_text(event: Event) -> str:
    told = {**event["attributes"]}
    if event["name"] == EVALUATION:  # divergence 0.1235, above_threshold: a sentence
        name, score, label, explanation = (
            told.pop(f"gen_ai.evaluation.{key}", None)
            for key in ("name", "score.value", "score.label", "explanation")
        )
        head = f"{name} {'—' if score is None else value_text(score)}"
        texts = [head, *([value_text(label)] if label else [])]
        tail = f": {value_text(explanation)}" if explanation else ""
    else:
        texts, tail = [event["name"].removeprefix("fairqr.")], ""
    texts += [f"{key.removeprefix('fairqr.')} {value_text(value)}" for key, value in told.items()]
    return ", ".join(texts) + tail


def _line(span: RecordedSpan) -> Any:
    line = Text.assemble((printable(span["name"]), "bold"), f"  {span['milliseconds']:.1f} ms")
    attributes = span["attributes"]
    if "gen_ai.prompt.name" in attributes:
        version = attributes.get("gen_ai.prompt.version")
        line.append(printable(f"  {attributes['gen_ai.prompt.name']}={version}"))
        sha256 = f" {attributes.get('fairqr.prompt.sha256', '')!s:.12}"
        line.append(printable(sha256), style="dim")
    if INPUT in attributes:
        text = f"  {attributes[INPUT]} + {attributes.get(OUTPUT, 0)} tokens"
        line.append(printable(text))
    if span["status"] != "ok":
        line.append(printable(f"  {span['status']}"), style="red")
    return line


def value_text(value: Any) -> str:
    """Return a value of an attribute for people."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{key} {value_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(value_text(item) for item in value)
    return str(value)
