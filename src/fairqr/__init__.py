"""Fair search: measure the exposure of groups, reduce gaps in it, and answer fairly.

Here live the public names, the façade ``FairSearch``, parts for LangChain, and the command. What
they do lives in the folders below, which never import from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairqr.agents.models.opening import open_model as open_model
    from fairqr.api import (
        FairSearch as FairSearch,
        SyncFairSearch as SyncFairSearch,
        open_engine as open_engine,
    )
    from fairqr.auditing import audit as audit
    from fairqr.base import errors as errors
    from fairqr.base.errors import FairqrError as FairqrError
    from fairqr.evaluation.audit.finishing import Audit as Audit
    from fairqr.evaluation.evaluate import evaluate as evaluate
    from fairqr.evaluation.experiments.catalogue import load_experiment as load_experiment
    from fairqr.graph.answer.builder import build_answer_graph as build_answer_graph
    from fairqr.graph.answer.context import (
        AnswerContext as AnswerContext,
        AnswerSettings as AnswerSettings,
    )
    from fairqr.graph.answer.result import AnswerResult as AnswerResult
    from fairqr.graph.probe.builder import build_probe_graph as build_probe_graph
    from fairqr.graph.probe.context import (
        ProbeContext as ProbeContext,
        ProbeSettings as ProbeSettings,
    )
    from fairqr.graph.probe.result import ProbeResult as ProbeResult
    from fairqr.graph.search.builder import build_search_graph as build_search_graph
    from fairqr.graph.search.context import Budget as Budget, Context as Context
    from fairqr.graph.search.result import SearchResult as SearchResult
    from fairqr.graph.stream import StepData as StepData
    from fairqr.middleware import FairRetrieval as FairRetrieval
    from fairqr.parts import (
        FairReranker as FairReranker,
        FairRetriever as FairRetriever,
        search_tool as search_tool,
    )
    from fairqr.retrieval.engines.langchain import from_langchain as from_langchain
    from fairqr.retrieval.sources.source import Source as Source

_HOMES = {
    "agents.models.opening": "open_model",
    "api": "FairSearch SyncFairSearch open_engine",
    "auditing": "audit",
    "base.errors": "FairqrError",
    "evaluation.audit.finishing": "Audit",
    "evaluation.evaluate": "evaluate",
    "evaluation.experiments.catalogue": "load_experiment",
    "graph.answer.context": "AnswerContext AnswerSettings",
    "graph.answer.builder": "build_answer_graph",
    "graph.answer.result": "AnswerResult",
    "graph.probe.context": "ProbeContext ProbeSettings",
    "graph.probe.builder": "build_probe_graph",
    "graph.probe.result": "ProbeResult",
    "graph.search.builder": "build_search_graph",
    "graph.search.context": "Budget Context",
    "graph.search.result": "SearchResult",
    "graph.stream": "StepData",
    "middleware": "FairRetrieval",
    "parts": "FairReranker FairRetriever search_tool",
    "retrieval.engines.langchain": "from_langchain",
    "retrieval.sources.source": "Source",
}
"""The public names by their module."""

_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = sorted([*_MODULES, "errors"])


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that the command's help loads no library."""
    from importlib import import_module

    if name == "errors":
        return import_module("fairqr.base.errors")
    if name not in _MODULES:
        raise AttributeError(f"module 'fairqr' has no attribute '{name}'")
    return getattr(import_module(f"fairqr.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, which only exist once they are used."""
    return sorted({*globals(), *__all__})
