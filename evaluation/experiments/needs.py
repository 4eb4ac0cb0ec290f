"""What an experiment's systems need: models, rankers and encoders that can be started."""

from __future__ import annotations

from collections.abc import Sequence

from fairqr.agents.feedback import FeedbackRefiner
from fairqr.agents.models import open_language_model, open_model
from fairqr.evaluation.experiments.plan import Cell, Plan
from fairqr.evaluation.workers.tools import Tools
from fairqr.graph.search.rankers import ASKED, Rankers
from fairqr.retrieval.encoders.encoder import PROBE
from fairqr.retrieval.encoders.opening import encoder_of

__all__ = ["check_needs"]


async def check_needs(tools: Tools, plan: Plan, cells: Sequence[Cell]) -> None:
    """Start what these cells ask and encode with, before anything is written.

    Raises:
        ModelUnavailableError: A model or an encoder is not there.
        ModelError: An encoder fails.
    """
    experiment = plan.manifest.experiment
    systems = [cell.system for cell in cells]
    asking = {s.model or experiment.model for s in systems if s.asks_a_model}
    for name in sorted(asking - {FeedbackRefiner.name}):
        await open_model(name, cache=False).start()
    rankers = {cell.system.name: cell for cell in cells if cell.system.ranker is not None}
    for cell in rankers.values():
        model = None
        if cell.system.ranker in ASKED:
            model = open_language_model(cell.system.model or experiment.model, cache=False)
        ranker = Rankers(None, model, tools.prompts).ranker_for(cell.context(experiment))
        if ranker is not None:
            await ranker.start()
    # A corpus that is named has vectors of its own, and says what encodes queries.
    encoded = {s.retriever for s in systems if experiment.corpus_of(s) is None}
    for retriever in sorted(encoded):
        encoder = encoder_of(retriever)
        if encoder is not None:
            await encoder.encode_query(PROBE)
