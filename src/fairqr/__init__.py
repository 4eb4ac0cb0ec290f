"""Fair search: measure the exposure of groups in a ranking, and mend it; answer from it fairly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairqr.agents.models import open_model
    from fairqr.api import FairSearch, Step, Token, open_engine
    from fairqr.errors import FairqrError
    from fairqr.graph.answer_result import AnswerResult
    from fairqr.graph.answering_context import AnswerSettings
    from fairqr.graph.builder import build_graph
    from fairqr.graph.context import Context
    from fairqr.graph.probe_result import ProbeResult
    from fairqr.graph.result import SearchResult
    from fairqr.retrieval.engines.langchain import from_langchain
    from fairqr.retrieval.source import Source

__all__ = [
    "AnswerResult",
    "AnswerSettings",
    "Context",
    "FairSearch",
    "FairqrError",
    "ProbeResult",
    "SearchResult",
    "Source",
    "Step",
    "Token",
    "build_graph",
    "from_langchain",
    "open_engine",
    "open_model",
]

_HOMES = {
    "AnswerResult": "fairqr.graph.answer_result",
    "AnswerSettings": "fairqr.graph.answering_context",
    "Context": "fairqr.graph.context",
    "FairSearch": "fairqr.api",
    "FairqrError": "fairqr.errors",
    "ProbeResult": "fairqr.graph.probe_result",
    "SearchResult": "fairqr.graph.result",
    "Source": "fairqr.retrieval.source",
    "Step": "fairqr.api",
    "Token": "fairqr.api",
    "build_graph": "fairqr.graph.builder",
    "from_langchain": "fairqr.retrieval.engines.langchain",
    "open_engine": "fairqr.api",
    "open_model": "fairqr.agents.models",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command's help loads none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fairqr' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
