"""All commands, in the groups that ``fairqr --help`` shows; each is imported when it is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """A command, or a group of commands.

    Attributes:
        home: Its module in ``fairqr.cli``, and its name there.
        about: The line that ``fairqr --help`` shows; also the help of a group.
    """

    home: str
    about: str


SECTIONS: Mapping[str, Mapping[str, Entry]] = {
    "Search, audit, answer, serve": {
        "demo": Entry("demo:demo", "Fetch the two small models, and run a fair search."),
        "search": Entry("search:search", "Search so that every group gets its share of exposure."),
        "audit": Entry("audit:app", "Measure who gets seen over many queries, and write a report."),
        "answer": Entry("answer:answer", "Answer a question, and show whose documents were used."),
        "serve": Entry("serve:serve", "Serve searches, answers and audits over HTTP, with a page."),
        "mcp": Entry("mcp:mcp", "Offer fair search to an agent as tools, over MCP."),
        "keys": Entry("keys:app", "Create and revoke access keys for the service."),
    },
    "Sources and indexes": {
        "attach": Entry("source:attach", "Attach a search engine that you already run."),
        "source": Entry("source:app", "List, show, check and remove attached search engines."),
        "index": Entry("index:app", "Create, change, list and delete indexes of your documents."),
        "corpus": Entry("corpus:app", "Check a corpus before you index it."),
        "dataset": Entry("dataset:app", "Import and list collections with topics and judgements."),
    },
    "Evaluate and experiment": {
        "evaluate": Entry("evaluate:evaluate", "Measure relevance and fairness of run files."),
        "experiment": Entry("experiment:app", "Run a published experiment, or your own."),
        "probe": Entry("probe:app", "Test whether a model that ranks leans toward a group."),
        "tune": Entry("tune:tune", "Tune a causal model by LoRA so that it leans less."),
        "train": Entry("train:train", "Train a re-ranker on the judgements of a collection."),
        "attribution": Entry("attribution:app", "Test what judges which documents were used."),
        "lamp": Entry("lamp:app", "Label which documents help a generator to answer."),
    },
    "Models, prompts, settings, traces": {
        "models": Entry("models:app", "List, fetch and remove the embedded models."),
        "prompts": Entry("prompts:app", "Show the prompts, and check your own."),
        "config": Entry("config:app", "Show the settings, and where each one comes from."),
        "trace": Entry("trace:app", "Show recorded runs, and compare results."),
    },
}


class _Commands(Mapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._entries = {name: it for entries in SECTIONS.values() for name, it in entries.items()}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._entries[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _load(name: str, entry: Entry) -> Any:
    """Import a command.

    Its module may have its class: ``SearchCommand`` for ``search``, ``AuditGroup`` for ``audit``.
    """
    place, _, attribute = entry.home.partition(":")
    module = import_module(f"fairqr.cli.{place}")
    found = getattr(module, attribute)
    only = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        cls = getattr(module, f"{name.capitalize()}Group", Group)
        only.add_typer(found, name=name, cls=cls, help=entry.about, no_args_is_help=cls is Group)
    else:
        only.command(name, cls=getattr(module, f"{name.capitalize()}Command", TyperCommand))(found)
    command = typer.main.get_group(only).commands[name]
    _name_values(command)
    return command


def _name_values(command: Any) -> None:
    """Let help call the value of ``--corpus`` CORPUS, and not by its type in Python."""
    for parameter in command.params:
        if parameter.metavar is None and not getattr(parameter, "is_flag", False):
            parameter.metavar = parameter.name.strip("_").upper()
    for inner in getattr(command, "commands", {}).values():
        _name_values(inner)


class Group(TyperGroup):
    """A command with commands below it, whose help has their whole first sentences."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first paragraph of each command's help."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, " ".join((command.help or "").partition("\n\n")[0].split()))
                    for name, command in self.commands.items()
                ]
            )


class CommandList(TyperGroup):
    """The command ``fairqr``, whose help lists all commands in sections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        commands: Any = _Commands()
        self.commands = commands

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one line about each command, without importing any."""
        width = max(map(len, self.commands))
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{n:<{width}}", it.about) for n, it in entries.items()])
