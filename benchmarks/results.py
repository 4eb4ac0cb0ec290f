"""Runs what ``docs/results/results.yaml`` lists and compares the figures: ``make results``.

``python -m benchmarks.results`` runs the small commands, ``--full`` those of whole tables; names of
results choose among them. ``page`` writes ``docs/runs/results.md`` from the file. Each command goes
on where it stopped, in its folder under ``build/results``.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pydantic import BaseModel

from fairqr.base.settings import data_dir

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "results" / "results.yaml"
PAGE = ROOT / "docs" / "runs" / "results.md"
FOLDER = ROOT / "build" / "results"
COLLECTION = re.compile(r"(?:--collection|notables|attached) (\w+)(?: |$)")
FILES = "measures.csv", "results.csv"
"""The figures of an experiment, and those of an audit."""


class ExpectedTable(BaseModel, extra="forbid", frozen=True):
    """Figures of a command's ``measures.csv``: means over what the rest of its columns tell apart.

    Attributes:
        where: What other columns have to hold.
        rows: The column that names the rows.
        columns: The column that names the columns.
        tolerance: How far a figure may be from the expected one; more where a language model is
            asked, whose words depend on the machine.
        relative: The same as a share of the figure, for what is timed; the larger one holds.
        figures: The expected ones, by row and column.
    """

    where: Mapping[str, str] = {}
    rows: str = "system"
    columns: str = "measure"
    tolerance: float = 0.0
    relative: float = 0.0
    figures: Mapping[str, Mapping[str, float]]


class Command(BaseModel, extra="forbid", frozen=True):
    """A command with what it is expected to give.

    Attributes:
        first: A module, with its arguments, that makes the collection; empty if it is there.
        run: Its arguments after ``fairqr``, or ``-m`` and a module, without the folder.
        takes: How long, in words.
        ran: The date and the versions it was run with last; empty if it was not.
        report: The published report, from the folder of the page; empty if there is none.
        tables: What it is expected to give.
    """

    first: str = ""
    run: str
    takes: str
    ran: str = ""
    report: str = ""
    tables: list[ExpectedTable] = []


class Result(BaseModel, extra="forbid", frozen=True):
    """A table or a figure of a paper, or of our own.

    Attributes:
        of: The paper; or ``fairqr``.
        shows: What it shows.
        paper: The paper's own figure and where it stands.
        differs: Why ours differs.
        small: The command that gives a first answer in minutes.
        full: That of the whole table.
        missing: What could not be had here, ``weights`` or ``collection``, for the full command.
    """

    of: str
    shows: str
    paper: str = ""
    differs: str = ""
    small: Command | None = None
    full: Command | None = None
    missing: str = ""


def results() -> dict[str, Result]:
    """Return what the file lists, by name."""
    found = yaml.load(FILE.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {name: Result.model_validate(one) for name, one in found.items()}


def measured(found: pd.DataFrame, table: ExpectedTable) -> pd.DataFrame:
    """Return the figures of a table by row and column, from all that was measured."""
    for column, value in table.where.items():
        found = found[found.get(column, "") == value]
    # A measure's name ends with its parameters. The file leaves them out, but for a convention,
    # which tells one column from another.
    whole = found[table.columns]
    names = whole.str.replace(r"\(.*", "", regex=True)
    with_convention = whole.str.replace(r"attribute=[^,)]*,", "", regex=True)
    names = names.mask(whole.str.contains("convention=", regex=False), with_convention)
    found = found.assign(**{table.columns: names})
    return found.pivot_table("value", table.rows, table.columns, sort=False)


def read(folder: Path) -> pd.DataFrame:
    """Return the figures that a command left, a row for each."""
    measures, results = (folder / it for it in FILES)
    if measures.exists():
        return pd.read_csv(measures, dtype=str).astype({"value": float})
    audited = pd.read_csv(results).query("segment.isna()")
    numbers = audited.select_dtypes("number").columns
    return audited.melt(["attribute", "group"], numbers, "measure")


def differences(folder: Path, command: Command) -> Iterator[str]:
    """Compare a command's figures with the expected ones; yield a line for each that differs."""
    found = read(folder)
    for table in command.tables:
        got = measured(found, table)
        for row, wanted in table.figures.items():
            for column, expected in wanted.items():
                value = got[column].get(row, math.nan) if column in got else math.nan
                room = max(table.tolerance, table.relative * abs(expected))
                if not abs(value - expected) <= room:  # what is missing differs
                    yield f"{row}, {column}: {value:.4f}, expected {expected:g} ± {room:g}"


def ran(name: str, command: Command) -> bool:
    """Run a command, and say what differs; return whether all is as expected."""
    folder, python = FOLDER / name, Path(sys.executable)
    written = written_as(command, str(folder))
    print(f"{name}: {written}   ({command.takes})", flush=True)
    if any((folder / it).exists() for it in FILES):  # what has ended may be of another version
        shutil.rmtree(folder)
    first = [f"python -m {command.first}"] if command.first else []
    for program, *rest in map(shlex.split, (*first, written)):
        if subprocess.run([python.with_name(program), *rest]).returncode:
            print(f"{name}: it was not run to its end")
            return False
    differing = list(differences(folder, command))
    compared = sum(len(row) for table in command.tables for row in table.figures.values())
    print(*differing, f"{name}: {compared - len(differing)} of {compared} figures", sep="\n")
    return compared > len(differing) == 0


def written_as(command: Command, folder: str) -> str:
    """Return a command as a user writes it."""
    program = "python" if command.run.startswith("-m ") else "fairqr"
    report = " --report" if command.run.startswith("experiment ") else ""
    return f"{program} {command.run} -o {folder}{report}"


def page(found: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Every result, its command and its figures\n"
    yield "From `docs/results/results.yaml`. First `fairqr models pull`, and bring the"
    yield "[collections](../how-to/bring-a-collection.md). Until 2026-11-27 this tree was 1.0.0.\n"
    for name, one in found.items():
        yield f"## {name}: {one.shows}\n"
        yield f"*{one.of}*" + (f"; {one.paper}" if one.paper else "") + "\n"
        for size, command in (("small", one.small), ("full", one.full)):
            if command is None:
                continue
            state = command.ran or f"not run: {one.missing or 'not yet'}"
            report = f"; [report]({command.report})" if command.report else ""
            first = f"`python -m {command.first}`, then " if command.first else ""
            about = f"{size}, {command.takes}; {state}{report}"
            yield f"{first}`{written_as(command, f'out/{name}-{size}')}` ({about})\n"
            for table in command.tables:
                yield from _table(table)
        if one.differs:
            yield f"{one.differs}\n"


def _table(table: ExpectedTable) -> Iterator[str]:
    frame = pd.DataFrame(table.figures).T
    told = ", ".join(f"{column} {value}" for column, value in table.where.items())
    room = f"{table.relative:.0%}" if table.relative else f"{table.tolerance:g}"
    yield f"| {told} (± {room}) | {' | '.join(map(str, frame.columns))} |"
    yield "|---|" + "---:|" * len(frame.columns)
    for row, values in frame.iterrows():
        cells: list[Any] = ["" if pd.isna(value) else f"{value:g}" for value in values]
        yield f"| {row} | {' | '.join(cells)} |"
    yield ""


def main() -> int:
    """Run what is asked for; return 1 if a figure differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of results, or 'page'; all if left out")
    parser.add_argument("--full", action="store_true", help="run the whole tables")
    given = parser.parse_args()
    found = results()
    if given.names == ["page"]:
        PAGE.write_text("\n".join(page(found)), encoding="utf-8")
        return 0
    if unknown := set(given.names) - set(found):
        parser.error(f"no such result: {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    held = True
    for name in given.names or found:
        one = found[name]
        command = one.full if given.full else one.small
        needed = {*COLLECTION.findall(command.run)} - {"notables"} if command else ()
        known = data_dir() / "collections"
        absent = [it for it in needed if not ((known / it).exists() or Path(it).exists())]
        if command is None or absent or (given.full and one.missing):
            lacking = one.missing or f"collection {', '.join(absent)}"
            print(f"{name}: not run: {lacking if command else 'no command of this size'}")
            continue
        held = ran(f"{name}{'-full' if given.full else ''}", command) and held
    return not held


if __name__ == "__main__":
    sys.exit(main())
