"""What the paper on language models as rankers published, and where it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fairqr.evaluation.experiments.report.parts import Block, Heading, Paragraph

__all__ = ["PAPER", "published_blocks"]

PAPER = (
    "Wang, Wu, Wu, Tao & Fang (2024), Do Large Language Models Rank Fairly? An Empirical Study on "
    "the Fairness of LLMs as Rankers, NAACL 2024, pages 5712–5724, arXiv 2404.03192"
)

_WHERE = {
    "listwise": (
        "its table 1 has P@20 and the exposure ratio by ranker and query, its table 2 the same by "
        "window and step, and its figure 3 the ranks of the protected items"
    ),
    "pairwise": (
        "its table 3 has the percentages of either group and their ratio, for relevant and for "
        "irrelevant pairs. The two percentages of a cell there add up to between .25 and .67, so "
        "between a third and three quarters of its pairs were not answered alike in both orders, "
        "or failed"
    ),
    "lora": (
        "its figure 4 has table 3 before and after tuning, of Mistral-7b. It trains rank 1 on "
        "attention weights with the learning rate .003 and batches of 4, on about 140,000 pairs"
    ),
}


def published_blocks(kind: Literal["listwise", "pairwise", "lora"]) -> Iterator[Block]:
    """Yield where to find the published values that an experiment can stand beside."""
    yield Heading("Published values")
    yield Paragraph(
        f"For reference only: {PAPER}. There, {_WHERE[kind]}. Its values are not taken over here. "
        "It asks GPT-3.5, GPT-4, Mistral-7b and Llama2-13b on data of TREC Fair Ranking; it "
        "publishes neither how many items each cell of its lists has nor in which order they are "
        "shown. "
        "Other models, collections and orders give other values, so none of those above can be "
        "compared with them digit by digit."
    )
