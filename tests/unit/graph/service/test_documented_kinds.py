"""The page of what an operator must know lists the kinds that tests try on servers."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[4]
KINDS = ROOT / "tests/integration/graph/service/proxy/kinds.yaml"
PAGE = ROOT / "docs/explanation/in-front.md"
HEAD = "| kinds of searches | what is re-ranked |\n| --- | --- |\n"
NEWER = "*"
"""Marks what no server here has: it is tried on one that answers as documented."""


def table_of_kinds() -> str:
    """Return the rows of the table: the kinds of which the same is re-ranked, in one row each."""
    kinds = yaml.safe_load(KINDS.read_text())
    names_by_extent: dict[str, list[str]] = {}
    for name, of_kind in groupby(kinds, key=lambda kind: str(kind["kind"])):
        examples = [*of_kind]
        names = names_by_extent.setdefault(_extent(examples), [])
        names.append(f"{name}{_mark(examples)}")
    return "".join(
        f"| {', '.join(names)} | {extent} |\n" for extent, names in names_by_extent.items()
    )


def _mark(examples: list[dict[str, Any]]) -> str:
    servers = {server for example in examples for server in example["servers"]}
    if all(server.startswith("newer") for server in servers):
        return NEWER
    return ""


def _extent(examples: list[dict[str, Any]]) -> str:
    """Say what is re-ranked of a kind, or why it passes."""
    reasons = [example["because"] for example in examples if "because" in example]
    reason = str(reasons[0]) if reasons else "the window"
    if all("passes" in example for example in examples):
        return f"nothing: {reason}"
    return reason


def test_the_table_of_kinds_is_what_is_tried_on_servers() -> None:
    page = PAGE.read_text()
    assert HEAD in page

    table = page.partition(HEAD)[2].partition("\n\n")[0] + "\n"
    assert table == table_of_kinds()
