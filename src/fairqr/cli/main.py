"""The entry point: finds a command, runs it, and turns errors into a sentence and exit code 2."""

from __future__ import annotations

import errno
import functools
import gc
import io
import os
import sys
from collections import UserDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from fairqr.base.errors import FairqrError, one_line
from fairqr.base.exporting import require_readable
from fairqr.cli.interrupts import INTERRUPTED, ends_at_once
from fairqr.cli.options import readable
from fairqr.cli.output import warn

SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Search, audit, answer, serve": {
        "demo": "Fetch the two small models, and run a fair search.",
        "search": "Search so that every group gets its share of exposure.",
        "audit": "Measure who gets seen over many queries, and write a report.",
        "answer": "Answer a question, and show whose documents were used.",
        "serve": "Serve searches, answers and audits over HTTP, with a page.",
        "proxy": "Stand in front of Elasticsearch and re-rank its searches.",
        "work": "Do the durable runs of a service, beside others.",
        "mcp": "Offer fair search to an agent as tools, over MCP.",
        "keys": "Create and revoke access keys for the service.",
    },
    "Sources and indexes": {
        "attach": "Attach a search engine that you already run.",
        "source": "List, check and remove attached search engines.",
        "index": "Create, change, list and delete indexes of your documents.",
        "corpus": "Check a corpus before you index it.",
        "dataset": "Import and list collections with topics and judgements.",
    },
    "Evaluate and experiment": {
        "evaluate": "Measure relevance and fairness of run files.",
        "experiment": "Run a published experiment, or your own.",
        "probe": "Test whether a model that ranks favours a group.",
        "train": "Train a re-ranker on the judgements of a collection.",
        "attribution": "Test what judges which documents were used.",
    },
    "Models, prompts, settings, traces": {
        "models": "List and fetch the embedded models, and measure any model.",
        "prompts": "Show the prompts, and check your own.",
        "config": "Show the settings, and where each one comes from.",
        "trace": "Show a recorded run.",
    },
}

_HOMES = {
    "search": ("search", "answer"),
    "experiments": ("experiment", "train", "attribution"),
    "service": ("serve", "proxy", "work", "mcp"),
    "settings": ("models", "prompts", "config", "trace"),
    "sources": ("attach", "source"),
    "indexes": ("index", "corpus"),
    "datasets": ("dataset",),
}
"""The modules that hold several commands, or have another name than their command."""


class _Commands(UserDict[str, Any]):
    """The commands by name, each imported when it is looked up."""

    def __getitem__(self, name: str) -> Any:
        return _load(name, super().__getitem__(name))


@functools.cache
def _load(name: str, about: str) -> Any:
    """Import a command: the function or the application of its name, or its module's ``app``."""
    home = next((home for home, names in _HOMES.items() if name in names), name)
    with ends_at_once():
        module = import_module(f"fairqr.cli.{home}")
    command = getattr(module, name, None) or module.app

    # Typer makes a command only as a part of an application.
    application = typer.Typer(rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        needs_command = not command.info.invoke_without_command
        application.add_typer(command, name=name, help=about, no_args_is_help=needs_command)
    else:
        application.command(name)(readable(command))
    return typer.main.get_group(application).commands[name]


class CommandList(TyperGroup):
    """The command ``fairqr``, whose help lists all commands in sections."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        abouts: dict[str, str] = {}
        for entries in SECTIONS.values():
            abouts.update(entries)
        self.commands = _Commands(abouts)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take `fairqr help search` for `fairqr search --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one line about each command, without importing any."""
        width = max(map(len, self.commands))
        for title, entries in SECTIONS.items():
            rows = [(f"{name:<{width}}", about) for name, about in entries.items()]
            with formatter.section(title):
                formatter.write_dl(rows)


# Some versions of typer bring a click of their own, so this class is found through typer.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

_IF_FULL = "make room, or name other folders in FAIRQR_DATA_DIR and FAIRQR_CACHE_DIR"
_IF_FORBIDDEN = "change its rights, or name another place"
_ADVICE = {
    errno.ENOSPC: _IF_FULL,
    errno.EDQUOT: _IF_FULL,
    errno.EFBIG: _IF_FULL,
    errno.EACCES: _IF_FORBIDDEN,
    errno.EPERM: _IF_FORBIDDEN,
    errno.EROFS: _IF_FORBIDDEN,
}
"""What the user can do about an error of the system."""

app = typer.Typer(
    name="fairqr",
    cls=CommandList,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(is_set: bool) -> None:
    if not is_set:
        return
    from importlib.metadata import version

    typer.echo(f"fairqr {version('fairqr')}")
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Measure who gets seen in search results, and change it."""
    require_readable()


def main() -> None:
    """Run the command; errors that a user can correct end with one sentence and exit code 2."""
    # A command imports thousands of modules, and a request to the service makes many objects; by
    # default, the collector would walk them again and again.
    gc.set_threshold(10_000)
    for stream in (sys.stdout, sys.stderr):
        # No text of a document or a model is worth a traceback on a terminal that cannot show it.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    _refuse_bytes(sys.argv[1:])

    try:
        # The framework's own handling would print a usage text around its errors.
        code = app(standalone_mode=False, prog_name="fairqr")
        sys.stdout.flush()
    except FairqrError as error:
        _fail(str(error))
    except _UsageError as error:
        _explain(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does; say nothing when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if error.strerror is None:
            raise
        _fail(_say_system_error(error))

    if code == INTERRUPTED:
        warn("interrupted")
    sys.exit(code if isinstance(code, int) else 0)


def _refuse_bytes(arguments: Sequence[str]) -> None:
    """End with an error if an argument is not text."""
    for argument in arguments:
        # Python stores bytes that are not text as lone surrogates.
        if any("\udc80" <= character <= "\udcff" for character in argument):
            readable_text = os.fsencode(argument).decode(errors="backslashreplace")
            shortened = one_line(readable_text, 60)
            _fail(f"The argument '{shortened}' is not valid UTF-8; correct or rename it.")


def _say_system_error(error: OSError) -> str:
    """Say what went wrong, at which file, and what the user can do about it."""
    file = f"{error.filename}: " if error.filename else ""
    advice = _ADVICE.get(error.errno or 0, "check the path")
    return f"{file}{error.strerror}; {advice}."


def _fail(sentence: str) -> NoReturn:
    warn(sentence)
    sys.exit(2)


def _explain(error: Any) -> NoReturn:
    """Say in one line what is wrong with the arguments; show the help if there are no arguments."""
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        sys.exit(2)
    problem = one_line(error.format_message()).rstrip(".")
    command = error.ctx.command_path if error.ctx else "fairqr"
    if problem.endswith("?"):
        _fail(f"{problem} See '{command} --help'.")
    _fail(f"{problem}; see '{command} --help'.")
