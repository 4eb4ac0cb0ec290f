"""Putting the report of a probe together, and writing it into the folder of its experiment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fairqr.base.errors import InputError
from fairqr.evaluation.experiments.catalogue import kind_of_folder
from fairqr.evaluation.experiments.report.markdown import to_markdown
from fairqr.evaluation.experiments.report.page import to_html
from fairqr.evaluation.experiments.report.parts import Block, Figure, Heading, Paragraph, Report
from fairqr.evaluation.probes.collection import ProbeCollection
from fairqr.evaluation.probes.measured import MeasuredListwise, MeasuredPairwise
from fairqr.evaluation.probes.measures import measure_run
from fairqr.evaluation.probes.report.listwise import (
    query_side_blocks,
    ranking_blocks,
    window_blocks,
)
from fairqr.evaluation.probes.report.listwise_effort import (
    listwise_cost_blocks,
    listwise_failure_blocks,
)
from fairqr.evaluation.probes.report.listwise_short import listwise_in_short
from fairqr.evaluation.probes.report.lora import (
    change_blocks,
    lora_in_short,
    lora_relevance_blocks,
    preference_change_blocks,
)
from fairqr.evaluation.probes.report.lora_training import (
    lora_failure_blocks,
    split_blocks,
    training_blocks,
    training_facts,
)
from fairqr.evaluation.probes.report.pairwise import (
    position_blocks,
    preference_blocks,
    relevance_blocks,
    vote_blocks,
)
from fairqr.evaluation.probes.report.pairwise_short import (
    pairwise_cost_blocks,
    pairwise_failure_blocks,
    pairwise_in_short,
)
from fairqr.evaluation.probes.report.published import published_blocks
from fairqr.evaluation.probes.report.ranks import rank_blocks
from fairqr.evaluation.probes.report.setup import (
    collection_blocks,
    intro,
    note_blocks,
    run_facts,
    setup_blocks,
)
from fairqr.evaluation.probes.report.values import listwise_values, lora_values, pairwise_values
from fairqr.evaluation.probes.specification import LORA_KIND
from fairqr.evaluation.probes.store import ProbeRunManifest, ProbeStore, PromptEntry
from fairqr.evaluation.probes.tuning_measures import measure_lora
from fairqr.evaluation.probes.tuning_records import LoraStore, MeasuredLora
from fairqr.evaluation.reports.drawing import can_draw
from fairqr.retrieval.files import write_beside

__all__ = ["listwise_report", "lora_report", "pairwise_report", "write_probe_report"]

FIGURES = "figures"


def write_probe_report(folder: Path) -> list[Path]:
    """Write ``report.md``, its figures in ``figures/``, ``report.html`` and ``measures.csv``.

    Equal results give equal files.

    Args:
        folder: Of a listwise or a pairwise experiment, or of a tuning.

    Returns:
        The files that were written.

    Raises:
        InputError: The folder holds no such run, or a file of it is damaged; or matplotlib is not
            installed: both reports are then written without plots.
    """
    if kind_of_folder(folder) == LORA_KIND:
        tuned = measure_lora(LoraStore(folder))
        return _write(folder, lora_report(tuned), lora_values(tuned))
    store = ProbeStore(folder)
    measured = measure_run(store)
    if isinstance(measured, MeasuredListwise):
        report = listwise_report(measured, store.collections())
        return _write(folder, report, listwise_values(measured, measured.manifest.rankings.k))
    return _write(folder, pairwise_report(measured), pairwise_values(measured))


def listwise_report(measured: MeasuredListwise, collections: Sequence[ProbeCollection]) -> Report:
    """Put the report of a listwise experiment together.

    Args:
        measured: What it found.
        collections: Those of the run, with their items.
    """
    manifest = measured.manifest
    experiment = measured.manifest.rankings
    blocks: list[Block] = [
        *intro(experiment.about, manifest.collections, measured.missing, "ranking"),
        *_on_plots(),
        *listwise_in_short(measured, collections),
        Heading("Relevance and exposure"),
        *ranking_blocks(measured, collections),
        Heading("Fairness toward those who ask"),
        *query_side_blocks(measured),
    ]
    if len(experiment.windows) > 1:
        blocks += [Heading("Window and step"), *window_blocks(measured)]
    blocks += [
        Heading("Where protected items stand"),
        *rank_blocks(measured),
        Heading("What failed, and what was mended"),
        *note_blocks(manifest.notes, measured.missing, "ranking"),
        *listwise_failure_blocks(measured),
        Heading("Cost"),
        *listwise_cost_blocks(measured),
        *published_blocks("listwise"),
        *_how(manifest),
    ]
    return Report(experiment.title, tuple(blocks))


def pairwise_report(measured: MeasuredPairwise) -> Report:
    """Put the report of a pairwise experiment together."""
    manifest = measured.manifest
    experiment = manifest.pairs
    blocks: list[Block] = [
        *intro(experiment.about, manifest.collections, measured.missing, "pair"),
        *_on_plots(),
        *pairwise_in_short(measured),
        Heading("Which group wins"),
        *preference_blocks(measured),
        Heading("Which position wins"),
        *position_blocks(measured),
        Heading("Votes and averages"),
        *vote_blocks(measured),
        Heading("Relevance"),
        *relevance_blocks(measured),
        Heading("What failed"),
        *note_blocks(manifest.notes, measured.missing, "pair"),
        *pairwise_failure_blocks(measured),
        Heading("Cost"),
        *pairwise_cost_blocks(measured),
        *published_blocks("pairwise"),
        *_how(manifest),
    ]
    return Report(experiment.title, tuple(blocks))


def lora_report(measured: MeasuredLora) -> Report:
    """Put the report of a tuning together."""
    manifest = measured.manifest
    prompt = PromptEntry(prompt=manifest.prompt, sha256=manifest.prompt_sha256, asked=())
    blocks: list[Block] = [
        *intro(manifest.experiment.about, manifest.collections, measured.missing, "held-out pair"),
        *_on_plots(),
        *lora_in_short(measured),
        Heading("Which group wins, before and after"),
        *preference_change_blocks(measured),
        Heading("What changed"),
        *change_blocks(measured),
        Heading("Relevance, before and after"),
        *lora_relevance_blocks(measured),
        Heading("Training"),
        *split_blocks(measured),
        *training_blocks(measured),
        Heading("What failed"),
        *note_blocks(manifest.notes, measured.missing, "held-out pair"),
        *lora_failure_blocks(measured),
        *published_blocks("lora"),
        Heading("How it was measured"),
        *collection_blocks(manifest.collections),
        *setup_blocks(
            manifest.experiment,
            manifest.collections,
            (prompt,),
            {**training_facts(measured), **run_facts(manifest)},
        ),
    ]
    return Report(manifest.experiment.title, tuple(blocks))


def _how(manifest: ProbeRunManifest) -> Iterator[Block]:
    yield Heading("How it was measured")
    yield from collection_blocks(manifest.collections)
    facts = run_facts(manifest, manifest.base_url)
    yield from setup_blocks(manifest.experiment, manifest.collections, manifest.prompts, facts)


def _on_plots() -> list[Block]:
    if can_draw():
        return []
    return [Paragraph("There are no plots: matplotlib was not installed.")]


def _write(folder: Path, report: Report, values: str) -> list[Path]:
    figures = [block for block in report.blocks if isinstance(block, Figure)]
    files = {
        # Figures first, so that the report never names one that is not there.
        **{f"{FIGURES}/{figure.name}.svg": figure.svg for figure in figures},
        "report.md": to_markdown(report, FIGURES),
        "report.html": to_html(report),
        "measures.csv": values,
    }
    for name, content in files.items():
        write_beside(folder / name, content)
    if not can_draw():
        raise InputError(
            f"{folder / 'report.md'} and report.html were written without plots, which need "
            "matplotlib; install it with: pip install 'fairqr[evaluation]'"
        )
    own = ("report.md", "report.html", "measures.csv")
    return [folder / name for name in (*own, *(name for name in files if name not in own))]
