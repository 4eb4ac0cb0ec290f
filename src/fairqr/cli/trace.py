"""The commands ``fairqr trace …``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.errors import InputError

if TYPE_CHECKING:
    from rich.tree import Tree

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look at recorded runs.")

Span = dict[str, Any]

# Shown in the head of a span's line, or of no interest to people.
_HIDDEN = {
    "gen_ai.operation.name",
    "gen_ai.provider.name",
    "gen_ai.request.model",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "fairqr.prompt.id",
    "fairqr.prompt.version",
    "fairqr.prompt.sha256",
}


@app.callback()
def _trace() -> None:
    """Look at recorded runs."""


@app.command()
def show(file: Annotated[Path, typer.Argument(help="What 'fairqr search --trace' wrote.")]) -> None:
    """Draw a recorded run as a tree, with times, tokens and decisions."""
    from rich.console import Console
    from rich.tree import Tree

    spans = read_spans(file)
    children: dict[str | None, list[Span]] = {}
    known = {span["span"] for span in spans}
    for span in sorted(spans, key=lambda span: float(span["start"])):
        # A run that was killed has spans whose parents were never written.
        parent = span["parent"] if span["parent"] in known else None
        children.setdefault(parent, []).append(span)
    console = Console(highlight=False)
    for root in children.pop(None, []):
        tree = Tree(_line(root))
        _grow(tree, root, children)
        console.print(tree)


def read_spans(file: Path) -> list[Span]:
    """Read a recorded run; a last line that was cut off is left out.

    Raises:
        InputError: The file cannot be read, or is no recorded run.
    """
    try:
        # A killed run may have ended within a character. Texts may hold what Python, but not JSON,
        # takes for the end of a line.
        lines = file.read_bytes().decode("utf-8", "replace").split("\n")
    except OSError as error:
        raise InputError(f"The trace {file} cannot be read: {error.strerror}.") from None
    if lines[-1] == "":
        lines.pop()
        cut_off = 0
    else:
        cut_off = len(lines)
    spans: list[Span] = []
    for number, line in enumerate(lines, start=1):
        try:
            span = json.loads(line)
            spans.append({key: _checked(span[key], kind) for key, kind in _KEYS.items()})
        except (ValueError, KeyError, TypeError, RecursionError):
            if number != cut_off or number == 1:
                raise InputError(
                    f"{file}, line {number} is not a span of a run; "
                    "name a file that 'fairqr search --trace' wrote."
                ) from None
    if not spans:
        raise InputError(f"The trace {file} is empty; record one with 'fairqr search --trace'.")
    return spans


_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "span": (str,),
    "parent": (str, type(None)),
    "start": (int, float),
    "milliseconds": (int, float),
    "status": (str,),
    "attributes": (dict,),
    "events": (list,),
}


def _checked(value: Any, kinds: tuple[type, ...]) -> Any:
    """Return the value of a span, refused where it is of another kind."""
    if not isinstance(value, kinds):
        raise TypeError
    for event in value if isinstance(value, list) else ():
        if not (isinstance(event["name"], str) and isinstance(event["attributes"], dict)):
            raise TypeError
    return value


def _grow(tree: Tree, span: Span, children: dict[str | None, list[Span]]) -> None:
    from rich.text import Text

    for key, value in span["attributes"].items():
        if key not in _HIDDEN:
            tree.add(Text(f"{key.removeprefix('fairqr.')}: {_value(value)}", style="dim"))
    for event in span["events"]:
        told = ", ".join(f"{key} {_value(value)}" for key, value in event["attributes"].items())
        tree.add(Text(f"• {event['name']}: {told}", style="cyan"))
    # Taken out, so that spans which name each other as parents cannot go round in circles.
    for child in children.pop(span["span"], []):
        _grow(tree.add(_line(child)), child, children)


def _line(span: Span) -> Any:
    from rich.text import Text

    line = Text.assemble((str(span["name"]), "bold"), f"  {span['milliseconds']:.1f} ms")
    attributes = span["attributes"]
    if "fairqr.prompt.id" in attributes:
        line.append(f"  {attributes['fairqr.prompt.id']}={attributes.get('fairqr.prompt.version')}")
        line.append(f" {attributes.get('fairqr.prompt.sha256', '')!s:.12}", style="dim")
    if "gen_ai.usage.input_tokens" in attributes:
        tokens = (
            attributes["gen_ai.usage.input_tokens"],
            attributes.get("gen_ai.usage.output_tokens", 0),
        )
        line.append(f"  {tokens[0]} + {tokens[1]} tokens")
    if span["status"] != "ok":
        line.append(f"  {span['status']}", style="red")
    return line


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return " ".join(f"{key} {_value(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_value(item) for item in value)
    return str(value)
