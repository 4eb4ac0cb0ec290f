"""How long the command takes to print its help, to open an engine by its name, and to search."""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from measuring import Row, in_turns, median
from workspace import Workspace

from fairqr.retrieval.sources.catalog import Catalog

MAX_MILLISECONDS = 120.0
MAX_OPENING_MILLISECONDS = 200.0
MAX_SEARCH_MILLISECONDS = 1500.0
FAIRQR = str(Path(sysconfig.get_path("scripts")) / "fairqr")
HEAVY = ("langgraph", "langchain", "langchain_core", "openai", "elasticsearch", "numpy", "tantivy")

LOADED = f"""
import contextlib, io, json, sys
sys.argv = ["fairqr", "--help"]
from fairqr.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""


def run(command: list[str], _: int) -> None:
    subprocess.run(command, check=True, capture_output=True)


def help_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure the installed command from start to end, beside Python's own start."""
    commands = {
        "fairqr": [FAIRQR, "--help"],
        "python": [sys.executable, "-c", "pass"],
    }

    calls = {name: functools.partial(run, command) for name, command in commands.items()}
    taken = in_turns(calls, workspace.rounds(25), 2)
    mine = median(taken["fairqr"])
    reached = mine <= MAX_MILLISECONDS
    target = f"≤ {MAX_MILLISECONDS:g} ms"
    python = median(taken["python"])
    yield Row("help", "fairqr --help", mine, "ms", "python -c pass", python, target, reached)
    loaded = json.loads(subprocess.check_output([sys.executable, "-c", LOADED], text=True))
    yield Row(
        "help",
        f"heavy packages that it loads: {', '.join(loaded) or 'none'}",
        len(loaded),
        "",
        target="none",
        reached=not loaded,
    )


def opening_rows(workspace: Workspace) -> Iterator[Row]:
    """Measure opening what is indexed already, by its name and by the path of its corpus."""
    workspace.build(workspace.documents)
    named = {
        "an index by its name": workspace.name(workspace.documents),
        "a corpus by its path": str(workspace.corpus(workspace.documents)),
    }

    async def opened(corpus: str) -> None:
        await (await Catalog().resolve(corpus)).aclose()

    for what, corpus in named.items():
        # The first one indexes a path.
        asyncio.run(opened(corpus))
        calls = {"ours": lambda _, corpus=corpus: asyncio.run(opened(corpus))}
        mine = median(in_turns(calls, workspace.rounds(25), 1)["ours"])
        yield Row(
            "opening",
            f"opening {what}, {workspace.documents:,} documents",
            mine,
            "ms",
            target=f"≤ {MAX_OPENING_MILLISECONDS:g} ms",
            reached=mine <= MAX_OPENING_MILLISECONDS,
        )
    search = [FAIRQR, "search", "river", "--corpus", named["an index by its name"]]
    calls = {"ours": functools.partial(run, [*search, "--model", "feedback"])}
    mine = median(in_turns(calls, workspace.rounds(9), 1)["ours"])
    target, reached = f"≤ {MAX_SEARCH_MILLISECONDS:g} ms", mine <= MAX_SEARCH_MILLISECONDS
    yield Row("opening", "fairqr search, start to end", mine, "ms", target=target, reached=reached)
