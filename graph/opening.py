"""What runs over one engine need, put together here for command, Python, service and the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairqr.graph.running import CONCURRENCY
from fairqr.graph.search.models import GivenModel, Model, model_of
from fairqr.graph.search.rankers import GivenRanker, Rankers
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.engines.engine import SearchEngine

if TYPE_CHECKING:
    from fairqr.graph.answer.parts import GivenAttributor, GivenGenerator


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """What graphs are built from; see :func:`open_parts`.

    Attributes:
        engine: The search engine.
        model: Refines, answers and is probed; None if there is none.
        rankers: Open the ranker of a run.
        generator: Writes answers, instead of the model; a name is opened with the graph.
        attributor: Judges answers; a name is opened with the graph.
        prompts: The library of prompts.
        concurrency: How many rankings are answered or judged at a time, or parts of a probe asked.
    """

    engine: SearchEngine
    model: Model | None
    rankers: Rankers
    generator: GivenGenerator | None
    attributor: GivenAttributor | None
    prompts: PromptLibrary
    concurrency: int
    _graphs: dict[tuple[str, int], Any] = field(default_factory=dict)

    def graph(self, kind: str, engine: SearchEngine | None = None) -> Any:
        """Return a graph, built at its first use.

        Args:
            kind: ``search``, ``answer`` or ``probe``.
            engine: The engine to search with, if not with the whole one: such as its lexical part.
        """
        engine = engine or self.engine
        key = (kind, id(engine))  # engines of users, such as dataclasses, may have no hash
        if key not in self._graphs:
            self._graphs[key] = self._build(kind, engine)
        return self._graphs[key]

    def _build(self, kind: str, engine: SearchEngine) -> Any:
        """Build a graph of a kind; only then are its modules imported."""
        options: dict[str, Any] = {"ranker": self.rankers, "prompts": self.prompts}
        if kind != "search":
            options["concurrency"] = self.concurrency
        if kind == "answer":
            options["generator"] = self.generator
            options["attributor"] = self.attributor
        module = import_module(f"fairqr.graph.{kind}.builder")
        build = getattr(module, f"build_{kind}_graph")
        return build(engine, self.model, **options)


def open_parts(
    engine: SearchEngine,
    model: GivenModel | None = None,
    *,
    ranker: GivenRanker | None = None,
    generator: GivenGenerator | None = None,
    attributor: GivenAttributor | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int = CONCURRENCY,
) -> RunParts:
    """Open what runs over an engine need. Models load nothing before they are started.

    Args:
        engine: The search engine.
        model: As the builders of graphs take it; so the others.
        ranker: Re-ranks, if not the model does.
        generator: Writes answers, if not the model does.
        attributor: Judges answers; None skips that.
        prompts: The library of prompts; defaults to the shipped prompts and yours.
        concurrency: How many rankings are answered or judged at a time, or parts of a probe asked.

    Raises:
        ModelUnavailableError: No model has the name.
        InputError: The object is not a model.
    """
    prompts = prompts or PromptLibrary()
    opened_model = model_of(model, engine)
    return RunParts(
        engine=engine,
        model=opened_model,
        rankers=Rankers.of(ranker, opened_model, prompts),
        generator=generator,
        attributor=attributor,
        prompts=prompts,
        concurrency=concurrency,
    )
