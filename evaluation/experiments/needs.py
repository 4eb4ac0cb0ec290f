"""What an experiment's systems need: models, rankers and encoders that can be started."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.models import open_model
from fairqr.agents.ranking.open import open_ranking_model
from fairqr.evaluation.experiments.plan import Cell, Plan
from fairqr.evaluation.experiments.specification import System
from fairqr.evaluation.workers.tools import Tools
from fairqr.graph.rankers import ASKED, Rankers
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.encoders.encoder import PROBE
from fairqr.retrieval.encoders.opening import DEFAULT_ENCODER, open_encoder
from fairqr.settings import text_of

__all__ = ["check_needs", "check_needs_there", "lacks"]


async def check_needs(plan: Plan, cells: Sequence[Cell], prompts: PromptLibrary) -> None:
    """Start what these cells ask and encode with, before anything is written or searched for.

    Raises:
        ModelUnavailableError: A model or an encoder is not there.
        ModelError: An encoder fails.
    """
    experiment = plan.manifest.experiment
    systems = [cell.system for cell in cells if not lacks(cell.system, plan)]
    asking = {s.model or experiment.model for s in systems if s.asks_a_model}
    for name in sorted(asking - {FeedbackRefiner.name}):
        await open_model(name, cache=False).start()
    rankers = {}
    for cell in cells:
        if cell.system.ranker is not None and not lacks(cell.system, plan):
            rankers[cell.system.name] = cell
    for cell in rankers.values():
        model = None
        if cell.system.ranker in ASKED:
            model = open_ranking_model(cell.system.model or experiment.model, cache=False)
        ranker = Rankers(None, model, prompts).ranker_for(cell.context(experiment))
        if ranker is not None:
            await ranker.start()
    for retriever in sorted({s.retriever for s in systems}):
        kind, _, encoder = retriever.partition(":")
        if kind == "dense":
            await open_encoder(encoder or DEFAULT_ENCODER).encode_query(PROBE)


async def check_needs_there(tools: Tools, plan: Plan, cells: Sequence[Cell]) -> None:
    """Do what :func:`check_needs` does, on a worker."""
    await check_needs(plan, cells, tools.prompts)


def lacks(system: System, plan: Plan) -> str:
    """Say what a system needs that is not there."""
    backend = system.backend or plan.manifest.experiment.backend
    if backend == "elasticsearch" and not text_of("elasticsearch.url"):
        return "it needs a server; name one with FAIRQR_ELASTICSEARCH_URL and run again."
    return ""
