"""A recorded run as a tree on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.text import Text
from rich.tree import Tree

from fairqr.cli.common import printable
from fairqr.cli.trace_reading import Span

__all__ = ["trees_of", "value_text"]

# Shown in the head of a span's line, or of no interest to people.
_HIDDEN = {
    "error.type",
    "gen_ai.data_source.id",
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.output.type",
    "gen_ai.request.model",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.workflow.name",
    "gen_ai.prompt.name",
    "gen_ai.prompt.version",
    "fairqr.prompt.sha256",
}


def trees_of(spans: Sequence[Span]) -> Iterator[Tree]:
    """Yield a tree for each span that has no parent in the file, in order of time."""
    children: dict[str | None, list[Span]] = {}
    known = {span["span"] for span in spans}
    for span in sorted(spans, key=lambda span: float(span["start"])):
        # A run that was killed has spans whose parents were never written.
        parent = span["parent"] if span["parent"] in known else None
        children.setdefault(parent, []).append(span)
    for root in children.pop(None, []):
        tree = Tree(_line(root))
        _grow(tree, root, children)
        yield tree


def _grow(tree: Tree, span: Span, children: dict[str | None, list[Span]]) -> None:
    for key, value in span["attributes"].items():
        if key not in _HIDDEN:
            text = f"{key.removeprefix('fairqr.')}: {value_text(value)}"
            tree.add(Text(printable(text), style="dim"))
    for event in span["events"]:
        told = ", ".join(f"{key} {value_text(value)}" for key, value in event["attributes"].items())
        tree.add(Text(printable(f"• {event['name']}: {told}"), style="cyan"))
    # Taken out, so that spans which name each other as parents cannot go round in circles.
    for child in children.pop(span["span"], []):
        _grow(tree.add(_line(child)), child, children)


def _line(span: Span) -> Any:
    line = Text.assemble((printable(span["name"]), "bold"), f"  {span['milliseconds']:.1f} ms")
    attributes = span["attributes"]
    if "gen_ai.prompt.name" in attributes:
        version = attributes.get("gen_ai.prompt.version")
        line.append(printable(f"  {attributes['gen_ai.prompt.name']}={version}"))
        sha256 = f" {attributes.get('fairqr.prompt.sha256', '')!s:.12}"
        line.append(printable(sha256), style="dim")
    if "gen_ai.usage.input_tokens" in attributes:
        tokens = (
            attributes["gen_ai.usage.input_tokens"],
            attributes.get("gen_ai.usage.output_tokens", 0),
        )
        line.append(printable(f"  {tokens[0]} + {tokens[1]} tokens"))
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
