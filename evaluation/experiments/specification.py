"""What an experiment with searches is: a collection, systems and measures."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from fairqr.agents.ranking.rankers import RankerName
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.collections.query_targets import as_target
from fairqr.evaluation.experiments.options import Options, Seed
from fairqr.evaluation.measures.measure import parse_measures
from fairqr.graph.search.context import Context, Method
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.fairness.target import DEFAULT_TARGET
from fairqr.retrieval.rerankers.registry import TRAINED

Section = Literal["table", "trade_off", "rounds", "drift", "cost", "published"]
Form = Annotated[str, StringConstraints(pattern=r"^title(\+[1-9][0-9]{0,2})?$")]
Retriever = Annotated[str, StringConstraints(pattern=r"^(auto|bm25|(dense|hybrid)(:.+)?)$")]

OF_THE_EXPERIMENT = ("attributes", "method", "k", "seed", "intersect")
_SETTING = re.compile(r"\{(\w+)\}")


def keywords_of(form: str) -> int:
    """Return how many keywords of a topic a form of query takes: 10 for ``title+10``."""
    return int(form.partition("+")[2] or 0)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Training(_Part):
    """How a system that needs trained weights gets them: by cross-validation over the topics.

    Each topic is ranked with weights that were trained on the topics of the other folds.

    Attributes:
        folds: How many.
        depth: How many documents of each topic to train on.
        options: Options of the training; see :mod:`fairqr.retrieval.rerankers`.
    """

    folds: int = Field(5, ge=2)
    depth: int = Field(200, ge=1)
    options: dict[str, Any] = {}


class System(_Part):
    """One of the systems that are compared.

    Attributes:
        name: It may name settings that vary, such as ``ours, at most {max_iterations}``.
        method: One of :data:`fairqr.graph.search.context.METHODS`.
        retriever: What it searches by, see :meth:`fairqr.retrieval.encoders.opening.Retriever.of`;
            defaults to the experiment's.
        corpus: What is searched; defaults to the experiment's corpus.
        model: Refines queries and re-ranks; defaults to the experiment's.
        settings: Values of :class:`fairqr.graph.search.context.Context`.
        vary: Settings with several values each; the system stands for every combination.
        train: For a method with trained weights.
    """

    name: str = Field(min_length=1, max_length=80)
    method: Method = "fairqr"
    retriever: Retriever = AUTO
    corpus: str | None = Field(None, min_length=1)
    model: str | None = None
    settings: dict[str, Any] = {}
    vary: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    train: Training | None = None

    @model_validator(mode="after")
    def _can_be_searched_with(self) -> System:
        if not self.name.isprintable() or self.name != self.name.strip():
            raise ValueError(f"the name '{one_line(self.name)}' is not one plain line; rename it")
        for setting in OF_THE_EXPERIMENT:
            if setting in {**self.settings, **self.vary}:
                raise ValueError(f"'{setting}' is set for the whole experiment, not in settings")
        for system in self.expanded():
            # The experiment's k, which a depth has to reach, is not known here.
            context = system._context
            is_trained = context.strategy.final_step in TRAINED
            if is_trained and self.train is None and "weights" not in context.options:
                raise ValueError(f"'{self.name}' needs weights: give it 'train: {{folds: 5}}'")
        return self

    def expanded(self) -> Iterator[System]:
        """Yield one system for each combination of what varies."""
        if not self.vary:
            yield self
            return
        if not set(_SETTING.findall(self.name)) <= self.vary.keys():
            raise ValueError(f"the name '{self.name}' has braces that name no setting")
        for values in itertools.product(*self.vary.values()):
            chosen, name = dict(zip(self.vary, values, strict=True)), self.name
            for setting, value in chosen.items():
                name = name.replace(f"{{{setting}}}", str(value))
            if name == self.name:
                name = f"{name}, " + ", ".join(f"{k}={v}" for k, v in chosen.items())
            settings = {**self.settings, **chosen}
            name = one_line(name, 200)
            yield self.model_copy(update={"name": name, "settings": settings, "vary": {}})

    @property
    def asks_a_model(self) -> bool:
        """Whether a run of it may ask a language model to refine, which samples by a seed."""
        return self._context.rounds > 0

    @property
    def ranker(self) -> RankerName | None:
        """The model that re-ranks; language models among them are ``model``."""
        return self._context.strategy.ranker

    @property
    def _context(self) -> Context:
        return Context.of(method=self.method, k=1, **self.settings)


class Experiment(Options):
    """An experiment."""

    filled = ("seeds", "queries")
    distinct = ("attributes",)

    kind: Literal["search"] = "search"
    collection: str = Field(
        "notables",
        description="The collection with documents, topics and judgements: a name or a folder.",
    )
    split: str | None = Field(
        None,
        description="Which judgements to use, if the collection has several sets, such as train "
        "or eval.",
    )
    attributes: tuple[str, ...] = Field(
        (),
        description="The attributes to measure, or products such as gender×continent, each alone. "
        "Defaults to all of the schema.",
    )
    queries: tuple[Form, ...] = Field(
        ("title",),
        description="How topics become queries: title, or title+10 with the first 10 keywords.",
    )
    topics: int | None = Field(None, ge=1, description="The most topics; all by default.")
    k: int = Field(20, ge=1, le=1000, description="How many documents each system returns.")
    target: str | None = Field(
        None,
        description="The target of the searches, which see no judgements; defaults to a search's "
        "own.",
    )
    judge: str | None = Field(
        None,
        description="The target that rankings are measured against; defaults to the collection's.",
    )
    measures: tuple[str, ...] = Field(
        ("nDCG@20", "AWRF@20(unit=bits)", "nDCG@20×AWRF@20(unit=bits)"),
        description="The measures.",
    )
    seeds: tuple[Seed, ...] = Field(
        (0,), description="The seeds of the models; systems that ask no model run once."
    )
    model: str = Field(
        "local:smollm2-135m",
        description="The model that refines queries, and that re-ranks where a system says so.",
    )
    retriever: Retriever = Field(
        AUTO,
        description="The retriever of systems that name none: bm25, dense, hybrid, or "
        "auto, which is hybrid once MiniLM is pulled.",
    )
    corpus: str | None = Field(
        None,
        min_length=1,
        description="The documents to search: a source, an index or a source file with those of "
        "the collection under the same ids. By default the documents of the "
        "collection, indexed here.",
    )
    baseline: str = Field(description="The system that the others are compared with.")
    systems: tuple[System, ...] = Field(description="The systems.")
    report: tuple[Section, ...] = Field(
        ("table", "trade_off", "cost"), description="The sections of the report."
    )

    @property
    def search_target(self) -> str:
        """The target of the searches, as it is written."""
        return self.target or str(DEFAULT_TARGET)

    @model_validator(mode="after")
    def _is_whole(self) -> Experiment:
        parse_measures(self.measures)
        Context.of(target=self.target, k=self.k)
        if self.judge:
            as_target(self.judge)
        names = Counter(system.name for system in self.all_systems())
        for system in self.all_systems():
            if names[system.name] > 1:
                raise ValueError(f"two systems are named '{system.name}'")
            try:
                Context.of(method=system.method, k=self.k, **system.settings)
            except InputError as error:
                raise ValueError(f"'{system.name}': {error}") from None
        if self.baseline not in names:
            raise ValueError(f"the baseline '{self.baseline}' is not one of the systems")
        return self

    def all_systems(self) -> list[System]:
        """Return the systems, those that vary settings as one for each combination."""
        return [one for system in self.systems for one in system.expanded()]

    def retriever_of(self, system: System) -> str:
        """Return what a system searches by."""
        return system.retriever if "retriever" in system.model_fields_set else self.retriever

    def corpus_of(self, system: System) -> str | None:
        """Return the corpus that a system searches; None for the collection's own documents."""
        return system.corpus or self.corpus

    def seeds_of(self, system: System) -> tuple[int, ...]:
        """Return the seeds of a system; only a model has anything to do with them."""
        return self.seeds if system.asks_a_model else self.seeds[:1]
