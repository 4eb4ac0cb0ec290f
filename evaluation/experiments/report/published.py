"""What the paper on FAIR-QR published, to stand beside an experiment's own numbers."""

from __future__ import annotations

from collections.abc import Iterator

from fairqr.evaluation.experiments.report.parts import Block, Cell, Heading, Paragraph, Table

__all__ = ["PAPER_ROUNDS", "published_section"]

PAPER_ROUNDS = "the paper reports a mean of 2, a 75th percentile of 4 and a maximum of 5"

_NUMBERS = (
    ("BM25", "0.6638", "0.8857", "", "0.7895"),
    ("vector search", "0.4771", "", "", ""),
    ("FAIR-QR", "0.6530", "", "0.6083", "0.7661"),
    ("FAIR-QR without re-ranking", "0.6423", "", "", ""),
)


def published_section() -> Iterator[Block]:
    """Yield the section."""
    yield Heading("Published numbers")
    yield Paragraph(
        "These are the numbers of Chen & Fang (2025, arXiv 2503.21092), on TREC Fair 2022, and "
        "none of them was measured here. Collection, judgements, models and indexes differ from "
        "those of this experiment, so the numbers stand beside those above and are not comparable "
        "with them."
    )
    yield Table(
        "As published, by Chen & Fang (2025). An empty cell: not taken over here.",
        (
            "system",
            "nDCG@20",
            "AWRF@20, gender",
            "nDCG@20×AWRF@20, gender",
            "AWRF@20, geography",
        ),
        tuple(tuple(Cell(text) for text in row) for row in _NUMBERS),
    )
    yield Paragraph(
        "The source calls FAIR-QR's AWRF of 0.7661 for geography the highest, although it gives "
        "0.7895 for BM25. Both are printed as they stand there, and nothing is claimed from either."
    )
