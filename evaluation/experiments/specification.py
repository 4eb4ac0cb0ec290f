"""What an experiment with searches is: a collection, systems and measures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fairqr.agents.ranking.rankers import RankerName
from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.collections.query_targets import as_target
from fairqr.evaluation.experiments.options import Options
from fairqr.evaluation.measures.measure import parse_measures
from fairqr.graph.search.context import Context, Method
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.fairness.target import DEFAULT_TARGET
from fairqr.retrieval.rerankers.registry import TRAINED

Section = Literal["table", "trade_off", "rounds", "drift", "cost", "published"]

_FORM = re.compile(r"title(?:\+([0-9]{1,3}))?")
_RETRIEVER = re.compile(r"auto|bm25|(?:dense|hybrid)(?::.+)?")
_SETTING = re.compile(r"\{(\w+)\}")


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class QueryForm(_Part):
    """How a topic becomes a query: ``title``, or ``title+10`` with its first 10 keywords."""

    keywords: int = 0

    def __str__(self) -> str:
        return f"title+{self.keywords}" if self.keywords else "title"

    @classmethod
    def parse(cls, text: str) -> QueryForm:
        """Read it as it is written.

        Raises:
            ValueError: It is neither.
        """
        match = _FORM.fullmatch(text)
        if not match:
            raise ValueError(f"'{one_line(text)}' is not a form of query; write title or title+10")
        return cls(keywords=int(match[1] or 0))


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
    retriever: str = AUTO
    corpus: str | None = Field(None, min_length=1)
    model: str | None = None
    settings: dict[str, Any] = {}
    vary: dict[str, list[Any]] = {}
    train: Training | None = None

    @field_validator("name")
    @classmethod
    def _is_one_line(cls, name: str) -> str:
        if not name.isprintable() or name != name.strip():
            raise ValueError(f"the name '{one_line(name)}' is not one plain line; rename it")
        return name

    @field_validator("retriever")
    @classmethod
    def _is_a_retriever(cls, retriever: str) -> str:
        if not _RETRIEVER.fullmatch(retriever):
            raise ValueError(
                f"there is no retriever '{one_line(retriever)}'; choose auto, bm25, dense, "
                "hybrid, dense:ENCODER or hybrid:ENCODER"
            )
        return retriever

    @field_validator("settings", "vary")
    @classmethod
    def _is_not_ours(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for name in ("attributes", "method", "k", "seed", "intersect"):
            if name in settings:
                raise ValueError(f"'{name}' is set for the whole experiment, not in settings")
        return settings

    @model_validator(mode="after")
    def _can_be_searched_with(self) -> System:
        for setting, values in self.vary.items():
            if not values:
                raise ValueError(f"'{setting}' varies over no value; list at least one")
        for system in self.expanded():
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
        for values in itertools.product(*self.vary.values()):
            chosen = dict(zip(self.vary, values, strict=True))
            if not set(_SETTING.findall(self.name)) <= chosen.keys():
                raise ValueError(f"the name '{self.name}' has braces that name no setting")
            name = self.name
            for setting, value in chosen.items():
                name = name.replace(f"{{{setting}}}", str(value))
            if name == self.name:
                name = f"{name}, " + ", ".join(f"{k}={v}" for k, v in chosen.items())
            name = self._is_one_line(one_line(name, 200))
            settings = {**self.settings, **chosen}
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
        # The experiment's k, which a depth has to reach, is not known here.
        return Context.of(method=self.method, k=1, **self.settings)


class Experiment(Options):
    """An experiment."""

    filled = ("seeds",)
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
    queries: tuple[Annotated[str, Field()], ...] = Field(
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
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        (0,), description="The seeds of the models; systems that ask no model run once."
    )
    model: str = Field(
        "local:smollm2-135m",
        description="The model that refines queries, and that re-ranks where a system says so.",
    )
    retriever: str = Field(
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

    @model_validator(mode="before")
    @classmethod
    def _has_retrievers(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("systems"), list | tuple):
            return given
        named = {"retriever": given["retriever"]} if "retriever" in given else {}
        systems = [
            one.model_dump(exclude_unset=True) if isinstance(one, System) else one
            for one in given["systems"]
        ]
        systems = [{**named, **one} if isinstance(one, dict) else one for one in systems]
        return {**given, "systems": systems}

    @property
    def search_target(self) -> str:
        """The target of the searches, as it is written."""
        return self.target or str(DEFAULT_TARGET)

    @model_validator(mode="after")
    def _is_whole(self) -> Experiment:
        for form in self.queries:
            QueryForm.parse(form)
        parse_measures(self.measures)
        Context.of(target=self.target, k=self.k)
        for system in self.all_systems():
            try:
                Context.of(method=system.method, k=self.k, **system.settings)
            except InputError as error:
                raise ValueError(f"'{system.name}': {error}") from None
        if self.judge:
            as_target(self.judge)
        names = [system.name for system in self.all_systems()]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two systems are named '{name}'")
        if self.baseline not in names:
            raise ValueError(f"the baseline '{self.baseline}' is not one of the systems")
        if not self.queries:
            raise ValueError("there is no form of query; write queries: [title]")
        return self

    def all_systems(self) -> list[System]:
        """Return the systems, those that vary settings as one for each combination."""
        return [one for system in self.systems for one in system.expanded()]

    def corpus_of(self, system: System) -> str | None:
        """Return the corpus that a system searches; None for the collection's own documents."""
        return system.corpus or self.corpus

    def query_forms(self) -> list[QueryForm]:
        """Return the forms of the topics' queries."""
        return list(dict.fromkeys(QueryForm.parse(form) for form in self.queries))
