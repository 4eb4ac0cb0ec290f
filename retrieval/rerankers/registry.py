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
        name: Its name in commands and files.
        description: What it does, as a phrase.
        reference: Authors and year of the paper.
        is_trained: Whether it needs trained weights.
        module: The module in this package; it has a function ``build(options, engine)``.
        options_name: The class of its options in that module.
    """

    name: str
    description: str
    reference: str
    is_trained: bool
    module: str
    options_name: str

    @property
    def about(self) -> str:
        """What it does and where it comes from, on one line."""
        return f"{self.description} ({self.reference})"

    def options_model(self) -> type[RerankOptions]:
        """Return the class of its options, which has their defaults, ranges and descriptions."""
        model: type[RerankOptions] = getattr(self._load(), self.options_name)
        return model

    def build(self, options: RerankOptions, engine: SearchEngine) -> Reranker:
        """Return the re-ranker with these options."""
        reranker: Reranker = self._load().build(options, engine)
        return reranker

    def _load(self) -> Any:
        return importlib.import_module(f"{PACKAGE}.{self.module}")


_ENTRIES = (
    RerankerEntry(
        "fair",
        "the fair step: the ranking of the highest expected relevance × fairness",
        "fairqr",
        is_trained=False,
        module="fair",
        options_name="FairOptions",
    ),
    RerankerEntry(
        "exposure-aware",
        "the exposure-aware step, which fills the ranks one by one toward the target",
        "fairqr; exposure after Singh & Joachims 2018",
        is_trained=False,
        module="exposure_aware",
        options_name="RerankOptions",
    ),
    RerankerEntry(
        "mmr",
        "maximal marginal relevance, which avoids near-duplicates and ignores groups",
        "Carbonell & Goldstein 1998",
        is_trained=False,
        module="mmr",
        options_name="MmrOptions",
    ),
    RerankerEntry(
        "xquad",
        "xQuAD, which favours relevant documents of groups not yet covered by those above",
        "Santos et al. 2010",
        is_trained=False,
        module="xquad",
        options_name="XquadOptions",
    ),
    RerankerEntry(
        "pm2",
        "PM-2, which shares out ranks in proportion to the target, like seats in an election",
        "Dang & Croft 2012",
        is_trained=False,
        module="pm2",
        options_name="Pm2Options",
    ),
    RerankerEntry(
        "fa-ir",
        "FA*IR, which lifts protected groups until each prefix passes a statistical test",
        "Zehlike et al. 2017; for several groups a test of each, bounded by Boole's inequality",
        is_trained=False,
        module="fair_topk",
        options_name="FairTopKOptions",
    ),
    RerankerEntry(
        "deltr",
        "DELTR, a linear model trained for relevance and for equal exposure",
        "Zehlike & Castillo 2020",
        is_trained=True,
        module="deltr",
        options_name="DeltrOptions",
    ),
    RerankerEntry(
        "dlf",
        "DLF, a linear reconstruction from its paper's abstract, which blends a model trained "
        "for relevance with one trained for the target",
        "Chen & Fang 2023",
        is_trained=True,
        module="dlf",
        options_name="DlfOptions",
    ),
)

RERANKERS: dict[str, RerankerEntry] = {entry.name: entry for entry in _ENTRIES}
TRAINED = tuple(entry.name for entry in _ENTRIES if entry.is_trained)
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
