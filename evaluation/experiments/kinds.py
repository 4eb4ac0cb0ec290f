"""The kinds of experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fairqr.base.extras import library
from fairqr.evaluation.experiments.measured import Measured
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.specification import Experiment
from fairqr.evaluation.experiments.workers import Tools, opened_tools
from fairqr.evaluation.probes.specification import (
    LISTWISE_KIND,
    LORA_KIND,
    PAIRWISE_KIND,
    ListwiseExperiment,
    LoraExperiment,
    PairwiseExperiment,
)
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.prompts.library import PromptLibrary

SEARCH = "search"
FAIR_RAG = "fair_rag"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How an experiment runs; none of it changes the results.

    Attributes:
        folder: Where everything goes.
        watcher: Receives the progress.
        prompts: Where prompts come from.
        workers: Where the work is done, as :func:`opened_tools` takes it.
        at_once: How many jobs may be under way at the same time.
        labels: What knows already which documents are useful, for Fair RAG.
        prompts_set: The ids of the prompts whose version the user set.
        report: Whether the report is written next, with the values of all measures.
        agree: Takes the most questions and tokens that a run may cost, and raises an error if the
            user has to agree first.
    """

    folder: Path
    watcher: StageWatcher
    prompts: PromptLibrary = field(default_factory=PromptLibrary)
    workers: str | None = None
    at_once: int | None = None
    labels: Sequence[Path] = ()
    prompts_set: frozenset[str] = frozenset()
    report: bool = False
    agree: Callable[[int, int], None] = lambda calls, tokens: None

    def tools(self, replies: Path) -> AbstractAsyncContextManager[Tools]:
        """Return what does the jobs; a file keeps the replies of models."""
        return opened_tools(self.prompts, replies, self.workers, self.at_once)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of experiment; we import its module when it is used.

    Attributes:
        name: In files.
        about: The subject of its experiments, in words.
        spec: What a file describes.
        module: Has the class ``STORE`` of its folders, and the functions ``run`` and ``measure``,
            which takes a store.
        models: The value of a specification that names the models.
        collections: The value that names the collections.
    """

    name: str
    about: str
    spec: type[Any]
    module: str
    models: str = "model"
    collections: str = "collection"

    async def run(self, experiment: Any, options: RunOptions) -> None:
        """Do the rest of an experiment.

        Raises:
            FairqrError: Something it names does not exist, the folder holds another run, a model
                fails, or the run is costly and the user did not agree.
        """
        if options.report:
            check_pandas()
        await import_module(self.module).run(experiment, options)

    def store(self, folder: Path) -> Any:
        """Return the folder as this kind reads it."""
        return import_module(self.module).STORE(folder)

    def measure(self, folder: Path) -> Measured:
        """Measure the results that a folder has so far.

        Raises:
            InputError: There is no run, it has no results yet, what it was run on has changed, or
                pandas is not installed.
        """
        check_pandas()
        found: Measured = import_module(self.module).measure(self.store(folder))
        return found


def check_pandas() -> None:
    """Check that a run can be measured, before it costs anything.

    Raises:
        InputError: pandas is not installed.
    """
    library("pandas", "Measuring a run")


_PLACE = "fairqr.evaluation"
_RANKERS = f"{_PLACE}.probes.running"
_KINDS = (
    Kind(SEARCH, "on searches", Experiment, f"{_PLACE}.experiments.running"),
    Kind(
        FAIR_RAG,
        "on Fair RAG",
        FairRagExperiment,
        f"{_PLACE}.rag.running",
        "generators",
        "collections",
    ),
    Kind(LISTWISE_KIND, "on listwise rankers", ListwiseExperiment, _RANKERS, "rankers"),
    Kind(PAIRWISE_KIND, "on pairwise rankers", PairwiseExperiment, _RANKERS, "models"),
    Kind(LORA_KIND, "on tuning", LoraExperiment, _RANKERS),
)
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
"""By what a file says as its ``kind``; one that says nothing is of the kind ``search``."""
