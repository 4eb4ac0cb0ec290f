"""The report of a Fair RAG experiment, as Markdown and as one HTML file, from the same parts."""

from __future__ import annotations

from fairqr.evaluation.rag.report.writing import write_rag_report

__all__ = ["write_rag_report"]
