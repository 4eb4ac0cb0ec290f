"""The commands ``fairqr attribution …``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairqr.cli.common import AsJson, BaseUrl, NoCache, print_json, run, warn

if TYPE_CHECKING:
    from fairqr.agents.attribution.checking import AttributorCheck

app = typer.Typer()

NOTABLES = "notables"


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the attributors, and the results of their checks."""
    from fairqr.agents.attribution.checking import known_checks
    from fairqr.agents.attribution.opening import ATTRIBUTORS, DEFAULT_ATTRIBUTOR

    checks = known_checks()
    if as_json:
        described = [{**check.model_dump(), "sentence": check.sentence} for check in checks]
        print_json({"attributors": ATTRIBUTORS, "default": DEFAULT_ATTRIBUTOR, "checks": described})
        return
    width = max(map(len, ATTRIBUTORS))
    for name, about in ATTRIBUTORS.items():
        mark = "*" if name == DEFAULT_ATTRIBUTOR else " "
        typer.echo(f"{mark} {name:<{width}}  {about}")
    typer.echo()
    if not checks:
        typer.echo("No attributor was checked yet: fairqr attribution check notables")
    names = [check.attributor for check in checks]
    for check in checks:
        # Attributors of one name may have other weights, or another server.
        which = f", {check.identity[:8]}" if names.count(check.attributor) > 1 else ""
        typer.echo(f"{check.sentence} [{check.source}{which}]")


@app.command()
def check(
    pairs: Annotated[
        str,
        typer.Argument(
            metavar="PAIRS",
            help="A JSON Lines file of premise, hypothesis and entailed (true or false); or "
            "notables, for 200 pairs about the people of that corpus.",
        ),
    ],
    attributor: Annotated[
        str,
        typer.Option("--attributor", help="The attributor, as 'fairqr attribution list' names it."),
    ] = "overlap",
    base_url: BaseUrl = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Measure an attributor on labelled pairs: its accuracy and its mistakes.

    The result is kept; other commands warn about an attributor that was never checked.
    """
    from fairqr.agents.attribution.checking import check_attributor, read_pairs, remember
    from fairqr.agents.attribution.opening import open_attributor
    from fairqr.base.errors import ModelError
    from fairqr.retrieval.sources.corpus import BUILT_IN

    options: dict[str, Any] = {"base_url": base_url} if base_url else {}
    judge = open_attributor(attributor, cache=not no_cache, **options)
    file = BUILT_IN[NOTABLES] / "pairs.jsonl" if pairs == NOTABLES else Path(pairs)
    if pairs == NOTABLES and Path(NOTABLES).is_file():
        warn("The pairs are those of the corpus notables; for the file, write ./notables.")
    source = NOTABLES if pairs == NOTABLES else file.name
    outcome = run(check_attributor(judge, read_pairs(file), source=source))
    if not outcome.judged:
        raise ModelError(next(iter(outcome.failures)), outcome.sentence)
    remember(outcome)
    if as_json:
        print_json({**outcome.model_dump(), "sentence": outcome.sentence})
        return
    _show(outcome)


def _show(outcome: AttributorCheck) -> None:
    cells = outcome.confusion
    typer.echo(f"pairs     {outcome.pairs} ({outcome.source}), judged {outcome.judged}")
    for status, count in sorted(outcome.failures.items()):
        typer.echo(f"          {count} {status}")
    if outcome.accuracy is not None:
        typer.echo(
            f"accuracy  {outcome.accuracy:.3f}, 95 % interval {outcome.low:.3f} to "
            f"{outcome.high:.3f}; the commoner answer alone {outcome.majority:.3f}"
        )
    rows = [
        ("", "attributed", "not"),
        ("entailed", cells["entailed_attributed"], cells["entailed_not"]),
        ("not", cells["not_attributed"], cells["not_not"]),
    ]
    for label, yes, no in rows:
        typer.echo(f"          {label:<9}{yes:>11}{no:>7}")
    typer.echo(outcome.sentence)
