"""The measures of Fair RAG by name, as tables and files call them."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["OF_ANSWERS", "OF_RANKINGS", "OF_USE", "Name"]


class Name(StrEnum):
    """A measure of one policy on one query; the report's template says what each one is."""

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


_ALL = tuple(Name)
OF_RANKINGS, OF_ANSWERS, OF_USE = _ALL[:7], _ALL[7:11], _ALL[11:]
"""What is measured of the rankings, of what the answers are worth, and of what they used."""
