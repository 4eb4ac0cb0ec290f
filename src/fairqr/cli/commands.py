"""All commands, in the groups that ``fairqr --help`` shows; each is imported when it is used."""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from fairqr.cli.options import readable

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Search, audit, answer, serve": {
        "demo": "Fetch the two small models, and run a fair search.",
        "search": "Search so that every group gets its share of exposure.",
        "audit": "Measure who gets seen over many queries, and write a report.",
        "answer": "Answer a question, and show whose documents were used.",
        "serve": "Serve searches, answers and audits over HTTP, with a page.",
        "work": "Do the durable runs of a service, beside others.",
        "mcp": "Offer fair search to an agent as tools, over MCP.",
        "keys": "Create and revoke access keys for the service.",
    },
    "Sources and indexes": {
        "attach": "Attach a search engine that you already run.",
        "source": "List, show, check and remove attached search engines.",
        "index": "Create, change, list and delete indexes of your documents.",
        "corpus": "Check a corpus before you index it.",
        "dataset": "Import and list collections with topics and judgements.",
    },
    "Evaluate and experiment": {
        "evaluate": "Measure relevance and fairness of run files.",
        "experiment": "Run a published experiment, or your own.",
        "probe": "Test whether a model that ranks leans toward a group.",
        "train": "Train a re-ranker on the judgements of a collection.",
        "attribution": "Test what judges which documents were used.",
    },
    "Models, prompts, settings, traces": {
        "models": "List, fetch and remove the embedded models.",
        "prompts": "Show the prompts, and check your own.",
        "config": "Show the settings, and where each one comes from.",
        "trace": "Show a recorded run.",
    },
}

_HOMES = {
    "experiments": ("experiment", "train", "attribution"),
    "service": ("serve", "work", "mcp", "keys"),
    "settings": ("models", "prompts", "config", "trace"),
    "sources": ("attach", "source", "index", "corpus", "dataset"),
}
"""The modules that hold several commands, or have another name than their command."""


class _Commands(UserDict[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _load(name, super().__getitem__(name))


@functools.cache
def _load(name: str, about: str) -> Any:
    """Import a command: the function or the application of its name, or its module's ``app``."""
    home = next((home for home, names in _HOMES.items() if name in names), name)
    module = import_module(f"fairqr.cli.{home}")
    app = getattr(module, name, None) or module.app
    only = typer.Typer(rich_markup_mode=None)
    if not isinstance(app, typer.Typer):
        only.command(name)(readable(app))
    else:
        needs_command = not app.info.invoke_without_command
        only.add_typer(app, name=name, help=about, no_args_is_help=needs_command)
    return typer.main.get_group(only).commands[name]


class CommandList(TyperGroup):
    """The command ``fairqr``, whose help lists all commands in sections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        abouts = {name: it for entries in SECTIONS.values() for name, it in entries.items()}
        self.commands = _Commands(abouts)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one line about each command, without importing any."""
        width = max(map(len, self.commands))
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{width}}", it) for name, it in entries.items()])
