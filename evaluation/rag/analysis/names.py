"""The measures of Fair RAG by name, as tables and files call them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["ABOUT", "About", "Name"]


class Name(StrEnum):
    """A measure of one policy on one query."""

    EE_D = "EE-D"
    EE_D_K = "EE-D/k"
    EE_D_UNBIASED = "EE-D, unbiased"
    EE_R = "EE-R"
    EE_R_FAIR_RAG = "EE-R, fair-rag"
    EE_L = "EE-L"
    NOT_USEFUL = "exposure of not useful"
    EU = "EU"
    EU_MAX = "EU/u_max"
    EU_MAX_RETRIEVER = "EU/u_max, retriever"
    EU_MAX_FAIR_RAG = "EU/u_max, fair-rag"
    EAR = "EAR"
    EE_D_K_ANSWERED = "EE-D/k, answered"
    EAE_D_K = "EAE-D/k"
    SHARE = "EAE-D/(k·EAR)"
    SHARE_EXCESS = "EAE-D/(k·EAR) − EE-D/k"
    USED_NOT_USEFUL = "use of not useful"


@dataclass(frozen=True, slots=True)
class About:
    """What a measure is.

    Attributes:
        formula: How it is computed.
        range: Of its values.
        best: Which end is fair, or good.
    """

    formula: str
    range: str
    best: str


ABOUT: dict[Name, About] = {
    Name.EE_D: About(
        "(Σ ε² − k²/n)/(k − k²/n): how unevenly exposure is spread", "0 to 1", "0 is even"
    ),
    Name.EE_D_K: About("Σ ε²/k, as “Towards Fair RAG” has it", "k/n to 1", "low is even"),
    Name.EE_D_UNBIASED: About(
        "EE-D from pairs of different samples, free of the upward bias of few samples",
        "about 0 to 1",
        "0 is even",
    ),
    Name.EE_R: About(
        "Σ ε·ε*, by the least and the greatest that can be reached: exposure where usefulness is",
        "0 to 1",
        "1 is best",
    ),
    Name.EE_R_FAIR_RAG: About(
        "Σ ε·ε* over useful documents by the greatest, as the code of “Towards Fair RAG” has it",
        "0 to 1, below 1 where m < k",
        "high is best",
    ),
    Name.EE_L: About("Σ (ε − ε*)², by the greatest that can be reached", "0 to 1", "0 is fair"),
    Name.NOT_USEFUL: About(
        "share of exposure that goes to documents that do not help", "0 to 1", "low is best"
    ),
    Name.EU: About("mean utility of the answers", "from 0, units of the task", "high is best"),
    Name.EU_MAX: About(
        "EU by the best answer to the query over oracle, all α, all retrievers and deterministic",
        "0 to 1",
        "1 is best",
    ),
    Name.EU_MAX_RETRIEVER: About(
        "EU by the best answer over the oracle and the same retriever's α, as the paper's code",
        "from 0; of random policies to 1",
        "high is best",
    ),
    Name.EU_MAX_FAIR_RAG: About(
        "the same, and 1 where no answer was worth anything, as the paper's code",
        "from 0; of random policies to 1",
        "high is best",
    ),
    Name.EAR: About("mean share of the documents read that the answer used", "0 to 1", "none"),
    Name.EE_D_K_ANSWERED: About(
        "Σ ε²/k over the samples that were answered alone, to stand beside EAE-D/k",
        "k/n to 1",
        "low is even",
    ),
    Name.EAE_D_K: About(
        "Σ (ε^a)²/k: how unevenly use is spread; little use looks fair (reconstructed)",
        "0 to EE-D/k of the answered",
        "low is even",
    ),
    Name.SHARE: About(
        "Σ (ε^a)²/Σ ε^a: the chance that what one answer used is used by one drawn again, itself "
        "included (reconstructed)",
        "0 to 1",
        "low is even",
    ),
    Name.SHARE_EXCESS: About(
        "the share less EE-D/k of the answered samples; even picking from much-varied rankings "
        "puts it near EAR·EE-D/k, well below 0",
        "−1 to 1",
        "none",
    ),
    Name.USED_NOT_USEFUL: About(
        "share of use that goes to documents that do not help", "0 to 1", "low is best"
    ),
}
