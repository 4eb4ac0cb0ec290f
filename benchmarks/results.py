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

import pandas as pd
import yaml
from pydantic import BaseModel

from fairqr.base.settings import data_dir

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "results" / "results.yaml"
PAGE = ROOT / "docs" / "runs" / "results.md"
FOLDER = ROOT / "build" / "results"
COLLECTION = re.compile(r"(?:--collection|notables|attached) (\w+)(?: |$)")
MEASURES = "measures.csv"
"""The figures of an experiment."""

AUDIT_RESULTS = "results.csv"
"""The figures of an audit."""


class ExpectedTable(BaseModel, extra="forbid", frozen=True):
    """Figures that a command's ``measures.csv`` should have: means over all other columns.

    Attributes:
        where: The values that other columns have to have.
        rows: The column that names the rows.
        columns: The column that names the columns.
        tolerance: How far a figure may be from the expected one; more for a language model, whose
            words depend on the machine.
        relative: The same as a share of the figure, for times; the larger one counts.
        figures: The expected figures, by row and column.
    """

    where: Mapping[str, str] = {}
    rows: str = "system"
    columns: str = "measure"
    tolerance: float = 0.0
    relative: float = 0.0
    figures: Mapping[str, Mapping[str, float]]


class Command(BaseModel, extra="forbid", frozen=True):
    """A command with the figures that it should give.

    Attributes:
        first: A module, with its arguments, that makes the collection; empty if it exists.
        run: The arguments after ``fairqr``, or ``-m`` and a module, without the folder.
        takes: How long it takes, in words.
        ran: The date and the versions of its last run; empty without one.
        report: The published report, from the folder of the page; empty if there is none.
        tables: The figures that it should give.
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
        full: The command of the whole table.
        missing: What the full command lacks here: ``weights`` or ``collection``.
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
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    entries = yaml.load(FILE.read_bytes(), loader)
    return {name: Result.model_validate(entry) for name, entry in entries.items()}


def measured(measures: pd.DataFrame, table: ExpectedTable) -> pd.DataFrame:
    """Return the figures of a table by row and column, from all that was measured."""
    for column, value in table.where.items():
        measures = measures[measures.get(column, "") == value]
    # A measure's name ends with its parameters. The file leaves them out, but for a convention,
    # which tells one column from another.
    full_names = measures[table.columns]
    names = full_names.str.replace(r"\(.*", "", regex=True)
    with_convention = full_names.str.replace(r"attribute=[^,)]*,", "", regex=True)
    has_convention = full_names.str.contains("convention=", regex=False)
    names = names.mask(has_convention, with_convention)
    measures = measures.assign(**{table.columns: names})
    return measures.pivot_table("value", table.rows, table.columns, sort=False)


def read(folder: Path) -> pd.DataFrame:
    """Return the figures that a command wrote, a row for each."""
    measures = folder / MEASURES
    if measures.exists():
        return pd.read_csv(measures, dtype=str).astype({"value": float})
    audited = pd.read_csv(folder / AUDIT_RESULTS).query("segment.isna()")
    numbers = audited.select_dtypes("number").columns
    return audited.melt(["attribute", "group"], numbers, "measure")


def differences(folder: Path, command: Command) -> Iterator[str]:
    """Compare a command's figures with the expected ones; yield a line for each that differs."""
    measures = read(folder)
    for table in command.tables:
        figures = measured(measures, table)
        for row, expected_row in table.figures.items():
            for column, expected in expected_row.items():
                value = math.nan
                if column in figures:
                    value = figures[column].get(row, math.nan)
                tolerance = max(table.tolerance, table.relative * abs(expected))
                # A figure that is missing differs, too: no comparison holds for nan.
                if not abs(value - expected) <= tolerance:
                    yield (f"{row}, {column}: {value:.4f}, expected {expected:g} ± {tolerance:g}")


def run(name: str, command: Command) -> bool:
    """Run a command, and say what differs; return whether all is as expected."""
    folder = FOLDER / name
    command_line = written_as(command, str(folder))
    print(f"{name}: {command_line}   ({command.takes})", flush=True)
    # A run that has ended may be of another version.
    if any((folder / file).exists() for file in (MEASURES, AUDIT_RESULTS)):
        shutil.rmtree(folder)

    command_lines = [command_line]
    if command.first:
        command_lines.insert(0, f"python -m {command.first}")
    for line in command_lines:
        program, *arguments = shlex.split(line)
        path = Path(sys.executable).with_name(program)
        if subprocess.run([path, *arguments]).returncode:
            print(f"{name}: it was not run to its end")
            return False

    differing = list(differences(folder, command))
    compared = 0
    for table in command.tables:
        compared += sum(len(row) for row in table.figures.values())
    equal = compared - len(differing)
    print(*differing, f"{name}: {equal} of {compared} figures", sep="\n")
    return compared > 0 and not differing


def written_as(command: Command, folder: str) -> str:
    """Return a command as a user writes it."""
    program = "python" if command.run.startswith("-m ") else "fairqr"
    report = " --report" if command.run.startswith("experiment ") else ""
    return f"{program} {command.run} -o {folder}{report}"


def page(listed: Mapping[str, Result]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Every result, its command and its figures\n"
    yield "From `docs/results/results.yaml`. First `fairqr models pull`, and bring the"
    yield "[collections](../how-to/bring-a-collection.md). Until 2026-11-27 this tree was 1.0.0.\n"
    for name, result in listed.items():
        yield f"## {name}: {result.shows}\n"
        paper = f"; {result.paper}" if result.paper else ""
        yield f"*{result.of}*{paper}\n"
        for size, command in (("small", result.small), ("full", result.full)):
            if command is not None:
                yield _command_line(f"{name}-{size}", size, command, result)
                for table in command.tables:
                    yield from _table(table)
        if result.differs:
            yield f"{result.differs}\n"


def _command_line(folder: str, size: str, command: Command, result: Result) -> str:
    """Return the line about a command: how to run it, how long it takes, and its last run."""
    first = f"`python -m {command.first}`, then " if command.first else ""
    report = f"; [report]({command.report})" if command.report else ""
    last_run = command.ran or f"not run: {result.missing or 'not yet'}"
    about = f"{size}, {command.takes}; {last_run}{report}"
    return f"{first}`{written_as(command, f'out/{folder}')}` ({about})\n"


def _table(table: ExpectedTable) -> Iterator[str]:
    """Yield the lines of a table in Markdown."""
    frame = pd.DataFrame(table.figures).T
    conditions = ", ".join(f"{column} {value}" for column, value in table.where.items())
    tolerance = f"{table.relative:.0%}" if table.relative else f"{table.tolerance:g}"
    yield f"| {conditions} (± {tolerance}) | {' | '.join(map(str, frame.columns))} |"
    yield "|---|" + "---:|" * len(frame.columns)
    for row, values in frame.iterrows():
        cells = []
        for value in values:
            cells.append("" if pd.isna(value) else f"{value:g}")
        yield f"| {row} | {' | '.join(cells)} |"
    yield ""


def _absent_collections(command: Command) -> list[str]:
    """Return the collections that a command needs and that do not exist here."""
    absent = []
    for name in {*COLLECTION.findall(command.run)} - {"notables"}:
        imported = data_dir() / "collections" / name
        if not imported.exists() and not Path(name).exists():
            absent.append(name)
    return absent


def _why_not_run(result: Result, command: Command | None, *, is_full: bool) -> str:
    """Say why a result cannot be run here; empty if it can."""
    if command is None:
        return "no command of this size"
    absent = _absent_collections(command)
    if absent or (is_full and result.missing):
        return result.missing or f"collection {', '.join(absent)}"
    return ""


def main() -> int:
    """Run the results that the user chose; return 1 if a figure differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of results, or 'page'; all if left out")
    parser.add_argument("--full", action="store_true", help="run the whole tables")
    arguments = parser.parse_args()
    listed = results()
    if arguments.names == ["page"]:
        PAGE.write_text("\n".join(page(listed)), encoding="utf-8")
        return 0
    unknown = set(arguments.names) - set(listed)
    if unknown:
        names = ", ".join(sorted(unknown))
        parser.error(f"no such result: {names}; there are {', '.join(listed)}")

    failed = False
    for name in arguments.names or listed:
        result = listed[name]
        command = result.full if arguments.full else result.small
        reason = _why_not_run(result, command, is_full=arguments.full)
        if command is None or reason:
            print(f"{name}: not run: {reason}")
            continue
        folder = f"{name}-full" if arguments.full else name
        if not run(folder, command):
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
