"""What an experiment with searches is: a collection, systems and measures; and its folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

from fairqr.base.errors import InputError, one_line
from fairqr.evaluation.collections.query_targets import as_target
from fairqr.evaluation.experiments.folder import Folder, FolderManifest, Lines, Record
from fairqr.evaluation.experiments.options import Options, Seed
from fairqr.evaluation.measures.measure import parse_measures
from fairqr.graph.search.context import Context, Method
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.rerankers.protection import PROTECTING
from fairqr.retrieval.rerankers.registry import TRAINED

Section = Literal["table", "trade_off", "rounds", "drift", "curve", "targets", "cost", "published"]
Form = Annotated[str, Field(pattern=r"^title(\+[1-9][0-9]{0,2})?$")]
Retriever = Annotated[str, Field(pattern=r"^(auto|bm25|(dense|hybrid)(:.+)?)$")]

MEASURES = ("nDCG@20", "AWRF@20(unit=bits)", "nDCG@20×AWRF@20(unit=bits)")
OF_THE_TRACK = (
    "nDCG@20",
    "AWRF@20(unit=bits)",
    "nDCG@20(convention=trec2022)",
    "AWRF@20(convention=trec2022)",
    "nDCG@20(convention=trec2022)×AWRF@20(convention=trec2022)",
    "nDCG@20×AWRF@20(unit=bits)",
)
"""The measures where the target is that of TREC Fair 2022 and the file names none: those of the
track, in nats and with its discount, beside ours."""

OF_THE_EXPERIMENT = {"attributes", "method", "k", "seed", "intersect"}


def keywords_of(form: str) -> int:
    """Return how many keywords of a topic a form of query takes: 10 for ``title+10``."""
    return int(form.partition("+")[2] or 0)


class Training(BaseModel, frozen=True, extra="forbid"):
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


class System(BaseModel, frozen=True, extra="forbid"):
    """One of the systems that are compared.

    Attributes:
        name: It may name settings that vary, such as ``ours, at most {max_iterations}``.
        method: One of :data:`fairqr.graph.search.context.METHODS`.
        retriever: What it searches by, see :meth:`fairqr.retrieval.encoders.opening.Retriever.of`;
            defaults to the experiment's, as do corpus and model.
        corpus: What is searched; ``{collection}`` stands for the name of the collection.
        model: Refines queries and re-ranks; ``{collection}`` as in the corpus.
        settings: Values of :class:`fairqr.graph.search.context.Context`.
        vary: Settings with several values each; the system stands for every combination.
        train: For a method with trained weights.
    """

    name: str = Field(min_length=1, max_length=80)
    method: Method = "fairqr"
    retriever: Retriever | None = None
    corpus: str | None = Field(None, min_length=1)
    model: str | None = None
    settings: dict[str, Any] = {}
    vary: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}
    train: Training | None = None

    def expanded(self, usual: Mapping[str, Any]) -> Iterator[System]:
        """Yield one system for each combination of what varies.

        Args:
            usual: What the experiment says of values that a system may leave out.
        """
        filled = {name: value for name, value in usual.items() if getattr(self, name) is None}
        for values in itertools.product(*self.vary.values()):
            chosen = dict(zip(self.vary, values, strict=True))
            name = self.name
            for setting, value in chosen.items():
                # Python's format would look up attributes of values, and pad them to any width.
                name = name.replace(f"{{{setting}}}", str(value))
            settings = {**self.settings, **chosen}
            changes = {**filled, "name": name, "settings": settings, "vary": {}}
            yield self.model_copy(update=changes)

    def for_collection(self, name: str) -> System:
        """Return the system with the name of a collection in its corpus and model."""
        update: dict[str, str] = {}
        if self.corpus is not None:
            update["corpus"] = self.corpus.replace("{collection}", name)
        if self.model is not None:
            update["model"] = self.model.replace("{collection}", name)
        return self.model_copy(update=update)

    def protecting(self, groups: str) -> System:
        """Return the system with groups to protect, if its method does so and names none."""
        default: dict[str, Any] = {"protected": groups}
        if self.method == "fa-ir":
            options = default | self.settings.get("options", {})
            return self.model_copy(update={"settings": {**self.settings, "options": options}})
        if self.method == "deltr" and self.train:
            options = default | self.train.options
            train = self.train.model_copy(update={"options": options})
            return self.model_copy(update={"train": train})
        return self

    def context(self, **values: Any) -> Context:
        """Return the context that its searches have, with the experiment's values.

        Raises:
            InputError: A setting is wrong, or is the experiment's.
        """
        misplaced = self.settings.keys() & OF_THE_EXPERIMENT
        if misplaced:
            raise InputError(
                f"'{min(misplaced)}' is set for the whole experiment, not in settings."
            )
        return Context.of(**{"method": self.method, **values, **self.settings})

    @property
    def asks_a_model(self) -> bool:
        """Whether a run of it may ask a language model to refine, which samples by a seed."""
        return self.context(k=1).rounds > 0


class Experiment(Options):
    """An experiment."""

    kind: Literal["search"] = "search"
    collection: str = Field("notables", description="The collection: a name or a folder.")
    split: str | None = Field(None, description="Which judgements, if there are several sets.")
    attributes: tuple[str, ...] = Field((), description="Such as gender×continent; all by default.")
    queries: tuple[Form, ...] = Field(
        ("title",), description="title, or title+10 with 10 keywords."
    )
    topics: int | None = Field(None, ge=1, description="The most topics; all by default.")
    documents: int | None = Field(
        None, ge=1, description="The most documents to index: the judged ones, and some by chance."
    )
    k: int = Field(20, ge=1, le=1000, description="How many documents each system returns.")
    target: str | None = Field(None, description="The target of systems that set none.")
    judge: str | None = Field(None, description="The measures' target; else the collection's.")
    measures: tuple[str, ...] = Field(MEASURES, description="Systems are compared by the last.")
    seeds: tuple[Seed, ...] = Field((0,), description="Of models; without one, a system runs once.")
    model: str = Field("local:smollm2-135m", description="The model that refines, and re-ranks.")
    retriever: Retriever = Field(AUTO, description="bm25, dense, hybrid; auto: hybrid with MiniLM.")
    corpus: str | None = Field(
        None, min_length=1, description="A source with these documents; indexed here by default."
    )
    protected: str | None = Field(
        None, description="The groups that FA*IR and DELTR protect; by default what lacks most."
    )
    baseline: str = Field(description="The system that the others are compared with.")
    pairs: tuple[tuple[str, str], ...] = Field(
        (), description="More comparisons: of the second system of each pair with the first."
    )
    systems: tuple[System, ...] = Field(description="The systems.")
    report: tuple[Section, ...] = Field(("table", "trade_off", "cost"), description="Its sections.")

    @field_validator("systems")
    @classmethod
    def _fill(cls, systems: tuple[System, ...], info: ValidationInfo) -> tuple[System, ...]:
        usual = {name: info.data.get(name) for name in ("model", "retriever", "corpus")}
        expanded: list[System] = []
        for system in systems:
            expanded += system.expanded(usual)
        groups = info.data.get("protected")
        if groups is None:
            return tuple(expanded)
        if not any(system.method in PROTECTING for system in expanded):
            raise ValueError("no system protects a group; leave out 'protected'")
        return tuple(system.protecting(groups) for system in expanded)

    @model_validator(mode="after")
    def _is_whole(self) -> Experiment:
        parse_measures(self.measures)
        if self.judge:
            as_target(self.judge)
        names = [system.name for system in self.systems]
        for system in self.systems:
            if not system.name.isprintable() or names.count(system.name) > 1:
                raise ValueError(f"'{one_line(system.name)}' is not one plain name of one system")
            self._check(system)
        if self.baseline not in names:
            raise ValueError(f"the baseline '{self.baseline}' is not one of the systems")
        for name in itertools.chain.from_iterable(self.pairs):
            if name not in names:
                raise ValueError(
                    f"the pairs name '{one_line(name)}', which is not one of the systems"
                )
        return self

    def _check(self, system: System) -> None:
        """Refuse a system with a wrong setting, or without the weights that it needs."""
        try:
            context = system.context(k=self.k, target=self.target)
        except InputError as error:
            raise ValueError(f"'{system.name}': {error}") from None
        needs_weights = context.strategy.final_step in TRAINED
        has_weights = system.train is not None or "weights" in context.options
        if needs_weights and not has_weights:
            raise ValueError(f"'{system.name}' needs weights: give it 'train: {{folds: 5}}'")

    def seeds_of(self, system: System) -> tuple[int, ...]:
        """Return the seeds of a system; only a model has anything to do with them."""
        return self.seeds if system.asks_a_model else self.seeds[:1]


class Manifest(FolderManifest):
    """What an experiment was run with.

    Attributes:
        experiment: The file, with what the command changed.
        collection: The name of the collection, and its title.
        collection_title: What a report calls it.
        collection_note: What a reader of its numbers should know.
        fingerprints: Hashes of the corpus, the topics and the judgements.
        attributes: The attributes that are measured.
        query_forms: The forms of queries that the collection has.
        topics: The ids of the topics.
        judge: The target that rankings are measured against.
        prompts: The sha256 of each prompt by ``id=version``.
        notes: Sentences about what the experiment names and the collection lacks.
    """

    free = frozenset({"collection_title", "collection_note", "notes"})

    experiment: Experiment
    collection: str
    collection_title: str
    collection_note: str = ""
    fingerprints: dict[str, str]
    attributes: tuple[str, ...]
    query_forms: tuple[str, ...]
    topics: tuple[str, ...]
    judge: str
    prompts: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()


class RoundRecord(BaseModel, frozen=True, extra="forbid"):
    """A round of a search; see :class:`fairqr.graph.search.result.Iteration`."""

    ids: list[str]
    exposure: dict[str, float]
    divergence: float | None


class SearchRecord(Record):
    """One search.

    Attributes:
        ids: The ranking.
        rounds: What each round had before any re-ranking; 0 is the original query's.
        best_round: The one that the ranking comes from.
        target: ε* as the search estimated it.
        divergence: How far the ranking is from the target, in nats.
        stop_reason: Why the loop ended.
        model_calls: Requests to models, those that the cache answered included.
        tokens: What they cost when they were first asked for.
        milliseconds: How long the search took, the models' time for cached replies included.
        at_once: How many searches were under way at the same time.
        error: Why there is no ranking; empty if there is one.
    """

    keys = ("attribute", "queries", "system", "seed", "topic")

    attribute: str
    queries: str
    system: str
    seed: int
    topic: str
    ids: list[str] = Field([])
    rounds: list[RoundRecord] = Field([])
    best_round: int = 0
    target: dict[str, float] = Field({})
    divergence: float | None = None
    stop_reason: str = ""
    model_calls: int = 0
    tokens: int = 0
    milliseconds: float = 0.0
    at_once: int = 1
    warnings: list[str] = Field([])
    error: str = ""


class RunFolder(Folder[Manifest]):
    """The folder of an experiment.

    Args:
        folder: It is made where it is missing.
    """

    manifest_type = Manifest

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines = Lines(folder / "results.jsonl", SearchRecord)
