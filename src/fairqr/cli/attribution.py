"""The commands ``fairqr attribution …``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairqr.base.errors import ModelError
from fairqr.cli.common import NOTABLES, run
from fairqr.cli.options import command
from fairqr.cli.output import Printed, number, table, warn

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fairqr.agents.attribution.checking import AttributorCheck

app = typer.Typer()


@command(app)
def list_() -> Printed:
    """List the attributors, and the results of their checks."""
    from fairqr.agents.attribution.checking import known_checks
    from fairqr.agents.attribution.opening import ATTRIBUTORS, DEFAULT_ATTRIBUTOR

    checks = known_checks()
    described = [{**check.model_dump(), "sentence": check.sentence} for check in checks]
    lines: list[Any] = [
        table(
            ("", "", ""),
            (
                ("*" if name == DEFAULT_ATTRIBUTOR else "", name, about)
                for name, about in ATTRIBUTORS.items()
            ),
        ),
        "",
    ]
    if not checks:
        lines.append("No attributor was checked yet: fairqr attribution check notables")
    names = [check.attributor for check in checks]
    for check in checks:
        # Attributors of one name may have other weights, or another server.
        which = f", {check.identity[:8]}" if names.count(check.attributor) > 1 else ""
        lines.append(f"{check.sentence} [{check.source}{which}]")
    data = {"attributors": ATTRIBUTORS, "default": DEFAULT_ATTRIBUTOR, "checks": described}
    return Printed(data, lines)


@command(app)
def check(
    pairs: str,
    *,
    attributor: str = "overlap",
    base_url: str | None = None,
    no_cache: bool = False,
) -> Printed:
    """Measure an attributor on labelled pairs: its accuracy and its mistakes.

    The result is kept; other commands warn about an attributor that was never checked.

    Args:
        pairs: A JSON Lines file of premise, hypothesis and entailed (true or false); or notables,
            for 200 pairs about the people of that corpus.
        attributor: The attributor, as 'fairqr attribution list' names it.
        base_url: The URL of an OpenAI-compatible server.
        no_cache: Ask the model again what it was asked before.
    """
    from fairqr.agents.attribution.checking import check_attributor, read_pairs, remember
    from fairqr.agents.attribution.opening import open_attributor
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
    return Printed({**outcome.model_dump(), "sentence": outcome.sentence}, _lines(outcome))


def _lines(outcome: AttributorCheck) -> Iterator[RenderableType]:
    cells = outcome.confusion
    yield f"pairs: {outcome.pairs} ({outcome.source}), judged {outcome.judged}"
    for status, count in sorted(outcome.failures.items()):
        yield f"{status}: {count}"
    if outcome.accuracy is not None:
        yield (
            f"accuracy: {outcome.accuracy:.3f}, 95 % interval {outcome.low:.3f} to "
            f"{outcome.high:.3f}; the commoner answer alone {outcome.majority:.3f}"
        )
    rows = [
        ("entailed", str(cells["entailed_attributed"]), str(cells["entailed_not"])),
        ("not", str(cells["not_attributed"]), str(cells["not_not"])),
    ]
    yield table(("", number("attributed"), number("not")), rows)
    yield outcome.sentence
