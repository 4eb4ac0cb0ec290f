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
    named: dict[str, list[str]] = {}
    for name, found in groupby(kinds, key=lambda kind: str(kind["kind"])):
        examples = [*found]
        named.setdefault(_what(examples), []).append(f"{name}{_mark(examples)}")
    return "".join(f"| {', '.join(names)} | {what} |\n" for what, names in named.items())


def _mark(examples: list[dict[str, Any]]) -> str:
    servers = {server for one in examples for server in one["servers"]}
    return NEWER if all(server.startswith("newer") for server in servers) else ""


def _what(examples: list[dict[str, Any]]) -> str:
    """Say what is re-ranked of a kind, or why it passes."""
    because = next((one["because"] for one in examples if "because" in one), "the window")
    if all("passes" in one for one in examples):
        return f"nothing: {because}"
    return str(because)


def test_the_table_of_kinds_is_what_is_tried_on_servers() -> None:
    page = PAGE.read_text()
    assert HEAD in page
    table = page.partition(HEAD)[2].partition("\n\n")[0] + "\n"
    assert table == table_of_kinds()
