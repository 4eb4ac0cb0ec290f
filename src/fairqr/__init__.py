"""Fair search: measure the exposure of groups in a ranking, and mend it; answer from it fairly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairqr.agents.models.opening import open_model
    from fairqr.api import FairSearch, Progress, StepData, SyncFairSearch, open_engine
    from fairqr.auditing import audit
    from fairqr.base import errors
    from fairqr.base.errors import FairqrError
    from fairqr.evaluation.audit.finishing import Audit
    from fairqr.evaluation.evaluate import evaluate
    from fairqr.evaluation.experiments.catalogue import load_experiment
    from fairqr.graph.answer.builder import answer_state_graph, build_answer_graph
    from fairqr.graph.answer.context import AnswerContext, AnswerSettings
    from fairqr.graph.answer.result import AnswerResult
    from fairqr.graph.probe.builder import build_probe_graph, probe_state_graph
    from fairqr.graph.probe.context import ProbeContext, ProbeSettings
    from fairqr.graph.probe.result import ProbeResult
    from fairqr.graph.search.builder import build_search_graph, search_state_graph
    from fairqr.graph.search.context import Budget, Context
    from fairqr.graph.search.result import SearchResult
    from fairqr.parts import FairReranker, FairRetriever, search_tool
    from fairqr.retrieval.engines.langchain import from_langchain
    from fairqr.retrieval.sources.source import Source

__all__ = [
    "AnswerContext",
    "AnswerResult",
    "AnswerSettings",
    "Audit",
    "Budget",
    "Context",
    "FairReranker",
    "FairRetriever",
    "FairSearch",
    "FairqrError",
    "ProbeContext",
    "ProbeResult",
    "ProbeSettings",
    "Progress",
    "SearchResult",
    "Source",
    "StepData",
    "SyncFairSearch",
    "answer_state_graph",
    "audit",
    "build_answer_graph",
    "build_probe_graph",
    "build_search_graph",
    "errors",
    "evaluate",
    "from_langchain",
    "load_experiment",
    "open_engine",
    "open_model",
    "probe_state_graph",
    "search_state_graph",
    "search_tool",
]

_HOMES = {
    "AnswerContext": "fairqr.graph.answer.context",
    "AnswerResult": "fairqr.graph.answer.result",
    "AnswerSettings": "fairqr.graph.answer.context",
    "Audit": "fairqr.evaluation.audit.finishing",
    "Budget": "fairqr.graph.search.context",
    "Context": "fairqr.graph.search.context",
    "FairReranker": "fairqr.parts",
    "FairRetriever": "fairqr.parts",
    "FairSearch": "fairqr.api",
    "FairqrError": "fairqr.base.errors",
    "ProbeContext": "fairqr.graph.probe.context",
    "ProbeResult": "fairqr.graph.probe.result",
    "ProbeSettings": "fairqr.graph.probe.context",
    "Progress": "fairqr.api",
    "SearchResult": "fairqr.graph.search.result",
    "Source": "fairqr.retrieval.sources.source",
    "StepData": "fairqr.api",
    "SyncFairSearch": "fairqr.api",
    "answer_state_graph": "fairqr.graph.answer.builder",
    "audit": "fairqr.auditing",
    "build_answer_graph": "fairqr.graph.answer.builder",
    "build_probe_graph": "fairqr.graph.probe.builder",
    "build_search_graph": "fairqr.graph.search.builder",
    "evaluate": "fairqr.evaluation.evaluate",
    "from_langchain": "fairqr.retrieval.engines.langchain",
    "load_experiment": "fairqr.evaluation.experiments.catalogue",
    "open_engine": "fairqr.api",
    "open_model": "fairqr.agents.models.opening",
    "probe_state_graph": "fairqr.graph.probe.builder",
    "search_state_graph": "fairqr.graph.search.builder",
    "search_tool": "fairqr.parts",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command's help loads no library."""
    from importlib import import_module

    if name == "errors":
        return import_module("fairqr.base.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'fairqr' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """List the public names, which only exist once they are used."""
    return sorted({*globals(), *__all__})
