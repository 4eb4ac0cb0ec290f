"""What was run, on which lists, and what they lack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fairqr.evaluation.experiments.folder import FolderManifest
from fairqr.evaluation.experiments.report import numbers, parts
from fairqr.evaluation.experiments.report.parts import Block, Cell, Items, Paragraph
from fairqr.evaluation.probes.collection import CELLS
from fairqr.evaluation.probes.report.common import ORDERS, counted
from fairqr.evaluation.probes.specification import (
    ListwiseExperiment,
    LoraExperiment,
    PairwiseExperiment,
)
from fairqr.evaluation.probes.store import CollectionEntry, PromptEntry

__all__ = ["collection_blocks", "intro", "note_blocks", "run_facts", "setup_blocks"]

ProbeExperiment = ListwiseExperiment | PairwiseExperiment | LoraExperiment

_SHOWN = {"title": "titles", "text": "texts", "title_text": "titles and texts"}


def intro(
    about: str, collections: Sequence[CollectionEntry], missing: int, what: str
) -> Iterator[Block]:
    """Yield what is asked, on what, and what is still to be done."""
    if about:
        yield Paragraph(about)
    for entry in collections:
        built = entry.built
        yield Paragraph(
            f"{entry.name}: {numbers.count(built.queries, 'query', 'queries')} with "
            f"{numbers.count(entry.items, 'item')} from {built.source}; by {built.attribute} the "
            f"protected group is {built.protected} ({', '.join(built.protected_groups)}), the "
            f"other {built.unprotected} ({', '.join(built.unprotected_groups)})."
        )
    if text := unfinished(missing, what):
        yield Paragraph(text)


def note_blocks(notes: Iterable[str], missing: int, what: str) -> Iterator[Block]:
    """Yield what is missing, and what was noted of the run."""
    sentences = [*notes]
    sentences.append(unfinished(missing, what) or "Nothing is missing: all was asked.")
    yield Items(tuple(sentences))


def unfinished(missing: int, what: str) -> str:
    """Say what an interrupted run has still to do; empty where that is nothing."""
    if not missing:
        return ""
    return (
        f"The run is not finished: {numbers.count(missing, what)} still to be done; running the "
        "experiment again goes on with them."
    )


def collection_blocks(collections: Sequence[CollectionEntry]) -> Iterator[Block]:
    """Yield how the probe collections were built, and what their cells lack."""
    rows = []
    for entry in collections:
        built = entry.built
        rows.append(
            (
                Cell(entry.name),
                Cell(str(built.queries)),
                Cell(f"{entry.items:,}", f"{built.size} a query where no cell is short"),
                *(
                    Cell(
                        f"{found['items']:,}" if (found := built.short.get(cell)) else "0",
                        f"in {numbers.count(found['queries'], 'query', 'queries')}"
                        if found
                        else "",
                    )
                    for cell in CELLS
                ),
                Cell(f"{built.undecided:,}"),
                Cell(f"{built.missing:,}"),
                Cell(counted({name.replace("_", " "): n for name, n in built.dropped.items()})),
            )
        )
    yield parts.Table(
        "The probe collections. Each query has items in four cells of equal size; irrelevant items "
        "are relevant ones of other queries. A cell with too few items stays short: how many are "
        "missing, and in how many queries. Undecided are relevant documents of both sides alike, "
        "or of an unknown group; they are left out, as are those that the corpus lacks.",
        (
            "collection",
            "queries",
            "items",
            *(f"short of {cell.replace('_', ' ')}" for cell in CELLS),
            "undecided",
            "not in the corpus",
            "topics left out",
        ),
        tuple(rows),
    )


def setup_blocks(
    experiment: ProbeExperiment,
    collections: Sequence[CollectionEntry],
    prompts: Sequence[PromptEntry],
    more: Mapping[str, str],
) -> Iterator[Block]:
    """Yield what the experiment was run with.

    Args:
        experiment: With what the command changed.
        collections: The probe collections.
        prompts: That models are asked with.
        more: What else is to be told, by name.
    """
    facts = {
        "initial order": "; ".join(
            dict.fromkeys(ORDERS[entry.built.order] for entry in collections)
        ),
        "seed": str(experiment.seed),
        "shown of an item": _SHOWN[experiment.shown],
        "at most": f"{experiment.length:,} characters of an item",
        **_of_kind(experiment),
    }
    for entry in collections:
        facts[f"{entry.name}: sha256"] = entry.sha256
        facts[f"{entry.name}: sha256 of its source"] = entry.built.source_fingerprint
        facts[f"{entry.name}: seed, order"] = f"{entry.built.seed}, {entry.built.order}"
    for prompt in prompts:
        asked = f"; asks {', '.join(prompt.asked)}" if prompt.asked else ""
        facts[f"prompt {prompt.prompt}"] = f"sha256 {prompt.sha256}{asked}"
    facts |= more
    yield parts.Table(
        "What the experiment was run with.",
        ("", "value"),
        tuple((Cell(name), Cell(text)) for name, text in facts.items()),
    )
    yield Paragraph(
        "Intervals are 95% percentile bootstrap intervals over queries, which are too narrow for a "
        "handful of them. A ranking or a pair whose questions failed counts in no mean."
    )


def run_facts(manifest: FolderManifest, base_url: str | None = None) -> dict[str, str]:
    """Return where a server listened, when a run was begun, and with which versions."""
    return {
        **({"server": base_url} if base_url else {}),
        "begun": manifest.started,
        "versions": ", ".join(f"{name} {version}" for name, version in manifest.versions.items()),
    }


def _at_most(number: int) -> str:
    return f"at most {number} a query" if number else "none"


def _of_kind(experiment: ProbeExperiment) -> dict[str, str]:
    match experiment:
        case ListwiseExperiment():
            return {
                "shown to monoT5 and monoBERT": _SHOWN[experiment.shown_to_neural],
                "rankers": ", ".join(experiment.rankers),
                "for": ", ".join(experiment.askers),
                "windows (size/step)": ", ".join(experiment.windows),
                "depth of P and nDCG": str(experiment.k),
            }
        case PairwiseExperiment():
            return {
                "models": ", ".join(experiment.models),
                "asked by": "replies"
                if experiment.by == "reply"
                else "probabilities where a model tells them, else replies",
                "pairs of each kind": f"at most {experiment.pairs} a query",
                "relevance pairs": _at_most(experiment.relevance_pairs),
                "for": experiment.asker,
            }
        case LoraExperiment():
            return {
                "model": experiment.model,
                "pairs to train on": f"at most {experiment.pairs} of each kind a query",
                "held-out pairs": f"at most {experiment.held_out_pairs} of each kind a query",
                "relevance pairs": _at_most(experiment.relevance_pairs),
                "share of queries to train on": f"{experiment.train_share:g}",
                "LoRA": f"rank {experiment.rank}, alpha {experiment.alpha:g}, dropout "
                f"{experiment.dropout:g}, on {', '.join(experiment.modules)}",
                "learning rate": f"{experiment.learning_rate:g}, {experiment.schedule}",
                "examples a step": str(experiment.batch),
            }
