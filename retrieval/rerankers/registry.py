"""The re-rankers by name: what each one is, where it comes from, and how to open it.

Importing this module loads neither numpy nor pydantic, so a command can list them at once.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import InputError, one_line

if TYPE_CHECKING:
    from fairqr.retrieval.engines.engine import SearchEngine
    from fairqr.retrieval.rerankers.base import Reranker, RerankOptions

PACKAGE = "fairqr.retrieval.rerankers"


@dataclass(frozen=True, slots=True)
class RerankerEntry:
    """What we know of a re-ranker without loading it.

    Attributes:
        description: What it does, as a phrase.
        reference: Authors and year of the paper.
        place: The module in this package, the class of its options there, and the function that
            opens it with these options and an engine.
        is_trained: Whether it needs trained weights.
    """

    description: str
    reference: str
    place: tuple[str, str, str]
    is_trained: bool = False

    @property
    def about(self) -> str:
        """What it does and where it comes from, on one line."""
        return f"{self.description} ({self.reference})"

    def options_model(self) -> type[RerankOptions]:
        """Return the class of its options, which has their defaults, ranges and descriptions."""
        model: type[RerankOptions] = getattr(self._module(), self.place[1])
        return model

    def build(self, options: RerankOptions, engine: SearchEngine) -> Reranker:
        """Return the re-ranker with these options."""
        reranker: Reranker = getattr(self._module(), self.place[2])(options, engine)
        return reranker

    def _module(self) -> Any:
        return importlib.import_module(f"{PACKAGE}.{self.place[0]}")


RERANKERS = {
    "fair": RerankerEntry(
        "the fair step: the ranking of the highest expected relevance × fairness",
        "fairqr",
        ("fair", "FairOptions", "FairReranker"),
    ),
    "exposure-aware": RerankerEntry(
        "the exposure-aware step, which fills the ranks one by one toward the target",
        "fairqr; exposure after Singh & Joachims 2018",
        ("fair", "RerankOptions", "ExposureAwareReranker"),
    ),
    "mmr": RerankerEntry(
        "maximal marginal relevance, which avoids near-duplicates and ignores groups",
        "Carbonell & Goldstein 1998",
        ("mmr", "MmrOptions", "MmrReranker"),
    ),
    "xquad": RerankerEntry(
        "xQuAD, which favours relevant documents of groups not yet covered by those above",
        "Santos et al. 2010",
        ("diversification", "XquadOptions", "xquad"),
    ),
    "pm2": RerankerEntry(
        "PM-2, which shares out ranks in proportion to the target, like seats in an election",
        "Dang & Croft 2012",
        ("diversification", "Pm2Options", "pm2"),
    ),
    "fa-ir": RerankerEntry(
        "FA*IR, which lifts protected groups until each prefix passes a statistical test",
        "Zehlike et al. 2017; for several groups a test of each, bounded by Boole's inequality",
        ("fa_ir", "FairTopKOptions", "FairTopKReranker"),
    ),
    "deltr": RerankerEntry(
        "DELTR, a linear model trained for relevance and for equal exposure",
        "Zehlike & Castillo 2020",
        ("deltr", "DeltrOptions", "DeltrReranker"),
        is_trained=True,
    ),
    "dlf": RerankerEntry(
        "DLF, a linear reconstruction from its paper's abstract, which blends a model trained "
        "for relevance with one trained for the target",
        "Chen & Fang 2023",
        ("dlf", "DlfOptions", "DlfReranker"),
        is_trained=True,
    ),
}

TRAINED = tuple(name for name, entry in RERANKERS.items() if entry.is_trained)
"""The re-rankers that read a file of weights, which ``fairqr train`` writes."""


def open_reranker(
    name: str, options: Mapping[str, object] | None = None, *, engine: SearchEngine
) -> Reranker:
    """Return a re-ranker.

    Args:
        name: One of :data:`RERANKERS`.
        options: The options as a command or a file gives them; text is converted to their types.
        engine: The engine that has the documents.

    Raises:
        InputError: The re-ranker or an option does not exist, a value is out of range, or the file
            of trained weights is missing or of another kind.
    """
    if name not in RERANKERS:
        raise InputError(
            f"There is no re-ranker '{one_line(name, 60)}'; choose {', '.join(RERANKERS)}."
        )
    entry = RERANKERS[name]
    from fairqr.retrieval.rerankers.base import read_options

    return entry.build(read_options(name, entry.options_model(), options or {}), engine)
