"""The options of a run: the context of the graph, checked at the edge and never changed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fairqr.agents.ranking.rankers import RANKERS, RankerName, RankerOptions, Shown
from fairqr.base.errors import InputError, TargetError, nearest_names, one_line, parameter_errors
from fairqr.retrieval.encoders.opening import AUTO
from fairqr.retrieval.fairness.divergence import (
    DEFAULT_SMOOTHING,
    DEFAULT_THRESHOLD,
    Direction,
    Lack,
)
from fairqr.retrieval.fairness.exposure import Discount, DiscountText
from fairqr.retrieval.fairness.ranking import RRF_K
from fairqr.retrieval.fairness.relevance import EvidenceWeights
from fairqr.retrieval.fairness.target import DEFAULT_TARGET, Target
from fairqr.retrieval.rerankers.fair import HEAVIEST, FairStep, OverAttributes, Ranks, WithinGroups
from fairqr.retrieval.rerankers.registry import ABOUT, RERANKERS

Whole = Annotated[int, Field(lt=2**31)]
"""A whole number without a limit of its own."""

PublishedMethod = Literal["mmr", "xquad", "pm2", "fa-ir", "deltr", "dlf"]
Method = Literal["fairqr", "fair-qr", "baseline", "greedy", PublishedMethod, RankerName]
Pool = Literal["last", "union"]
Order = Literal["relevance", "original_query", "fusion", "none"]
Rerank = Literal[Order, RankerName]
Groups = Literal["most", "lacking", "all"]
Ask = Literal["auto", "always", "never"]
FinalRound = Literal["best", "last"]
if TYPE_CHECKING:
    FinalStep = str
else:  # A re-ranker is registered in one place, which a type checker cannot read.
    FinalStep = Literal[(*RERANKERS, "none")]
"""A re-ranker of :mod:`fairqr.retrieval.rerankers`, or ``none``."""


READS: Mapping[RankerName, int] = {"listwise": 100, "pairwise": 20, "monot5": 100, "monobert": 100}
"""How many documents each ranker reads by default; pairwise comparisons cost most."""


OF_FAIR_STEP = ("fairness_weight", "order", "fairness", "spread", "at_most", "equal_chance")
"""The parameters of a search that the fair step alone reads."""


class Frozen(BaseModel):
    """An object that never changes, and has no other fields than those that it states."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a method refines the query, pools what it retrieved, and orders the pool.

    Attributes:
        about: One line for users.
        refines: Whether it refines the query. A method that refines never returns a ranking farther
            from the target than the engine's own ranking, unless it keeps the last round; other
            methods have no such guarantee.
        groups: The groups to ask about in one round: the ``most`` under-represented group, those
            ``lacking`` exposure, or ``all``, since words of a group also show which of its
            documents are relevant.
        final_round: Which round's documents the result is made of: the ``best`` one, or the
            engine's own ranking if that is nearer to the target; or the ``last`` one, whatever it
            brought (the paper).
        pool: The documents to re-rank: those of the ``last`` refined queries, or the ``union`` of
            all rounds.
        ask: When to ask the model: ``always``, ``never``, or only if another round is expected to
            improve the ranking enough (``auto``).
        rerank: How to order the pool: by ``relevance`` to the original query; by the
            ``original_query``, whose scores an engine must be able to give (the paper); by
            ``fusion`` of all rankings; or ``none``.
        ranker: A model that then re-ranks the best of the pool by the original query; one of
            :data:`fairqr.agents.ranking.rankers.RANKERS`, or None.
        reads: How many documents the ranker reads; the others keep their places below.
        final_step: The re-ranker that then picks the first k.
        depth: How many documents each query retrieves; None means k.
        retriever: The retriever that ``auto`` means with this method, if it is fixed.
    """

    about: str
    refines: bool = False
    ask: Ask = "always"
    groups: Groups = "all"
    final_round: FinalRound = "best"
    pool: Pool = "union"
    rerank: Order = "none"
    ranker: RankerName | None = None
    reads: int = 0
    final_step: FinalStep = "none"
    depth: int | None = 200
    retriever: str = AUTO

    def searched_by(self, retriever: str) -> str:
        """Return the retriever to open for the requested one."""
        return self.retriever if retriever == AUTO else retriever


METHODS: dict[Method, Strategy] = {
    "fairqr": Strategy(
        "the default: the ranking of the highest expected relevance × fairness; a model refines "
        "the query if that is expected to help",
        refines=True,
        ask="auto",
        rerank="relevance",
        final_step="fair",
        depth=500,
    ),
    # A pool that also held the original top k would be the original ranking again, so it is k deep.
    "fair-qr": Strategy(
        "our reading of FAIR-QR (Chen & Fang 2025): refines the query for the group that lacks "
        "most exposure, and orders what it finds by the original query",
        refines=True,
        groups="most",
        pool="last",
        rerank="original_query",
        depth=None,
        retriever="bm25",
    ),
    "baseline": Strategy("the retriever's own ranking, and nothing else"),
    "greedy": Strategy(ABOUT["exposure-aware"], final_step="exposure-aware"),
}
METHODS |= {name: Strategy(ABOUT[name], final_step=name) for name in get_args(PublishedMethod)}
METHODS |= {
    ranker: Strategy(
        f"re-ranks the first {reads} results with {RANKERS[ranker]}, then fills the ranks toward "
        "the target",
        ranker=ranker,
        final_step="exposure-aware",
    )
    for ranker, reads in READS.items()
}


@functools.lru_cache(maxsize=256)
def _strategy(
    method: Method,
    rerank: Rerank | None,
    k: int,
    depth: int | None,
    reads: int | None,
    **overrides: str | None,
) -> Strategy:
    """Return a method's strategy, with the overrides of a context; see :class:`SearchParameters`.

    Args:
        method: The method.
        rerank: How to order the pool, or which ranker does.
        k: How many ranks there are.
        depth: How many documents each query retrieves.
        reads: How many documents the ranker reads.
        **overrides: Other parts of the strategy; None means the method's own.
    """
    strategy = METHODS[method]
    order = strategy.rerank
    ranker = strategy.ranker
    if rerank in READS:
        ranker = cast("RankerName", rerank)
    elif rerank is not None:
        order = cast("Order", rerank)
        ranker = None
    documents_read = 0
    if ranker is not None:
        documents_read = reads or depth or READS[ranker]
    chosen: dict[str, Any] = {name: value for name, value in overrides.items() if value is not None}
    return dataclasses.replace(
        strategy,
        rerank=order,
        ranker=ranker,
        reads=documents_read,
        depth=max(depth or strategy.depth or k, k, reads or 0),
        **chosen,
    )


class WindowSettings(Frozen):
    """What a model reads at once, where it orders documents in windows or compares them."""

    length: int = Field(
        2000, ge=1, le=100_000, description="The most characters of a document that are shown."
    )
    window: int = Field(
        20, ge=2, le=1000, description="How many documents the model orders at once."
    )
    step: int | None = Field(
        None,
        ge=1,
        le=1000,
        description="How many documents the window moves by; half of the window by default.",
    )
    context: int | None = Field(
        None,
        ge=1,
        description=(
            "How many tokens the model can read and write at once; only needed if the model does "
            "not state it."
        ),
    )

    @model_validator(mode="after")
    def _step_is_within_the_window(self) -> Self:
        """Windows must overlap, so that the best documents can rise from one to the next."""
        if self.step is not None and self.step >= self.window:
            raise ValueError(
                f"step is {self.step}, but window is {self.window}; make step smaller, so that "
                "windows overlap"
            )
        return self

    def ranker_options(self, versions: Mapping[str, str]) -> RankerOptions:
        """Return the options for :func:`fairqr.agents.ranking.rankers.open_ranker`.

        Args:
            versions: The versions of prompts, by id.
        """
        names = {field.name for field in dataclasses.fields(RankerOptions)}
        options = self.model_dump(include=names, exclude_none=True)
        options["step"] = self.step or max(1, self.window // 2)
        options["versions"] = versions
        return RankerOptions(**options)


class RankingSettings(WindowSettings):
    """How a model re-ranks; each ranker uses the options that it needs."""

    depth: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description=(
            "How many of the best documents the model reads; the others keep their places below. "
            "By default the depth of the search if it is set, or else 20 for pairwise and 100 for "
            "the others."
        ),
    )
    shown: Shown | None = Field(
        None,
        description=(
            "What the model reads of a document: title, text or title_text; by default title_text."
        ),
    )
    by: Literal["probabilities", "reply"] = Field(
        "probabilities",
        description=(
            "How a pairwise ranker decides: by the probabilities of the two labels, if the model "
            "gives them, or by the reply it writes."
        ),
    )
    weights: str | None = Field(
        None, min_length=1, description="The hub id or folder of monoT5 or monoBERT weights."
    )
    concurrency: int = Field(
        8, ge=1, le=256, description="How many comparisons run at the same time."
    )


class Budget(Frozen):
    """What one run may spend on models. When it is spent, the best result so far is returned."""

    model_calls: int | None = Field(
        None, ge=0, description="The most calls of models in one run; unlimited by default."
    )
    tokens: int | None = Field(
        None,
        ge=0,
        description=(
            "The most tokens that one run may use; unlimited by default. No question is asked that "
            "is not expected to fit; only replies that are longer than asked for exceed it."
        ),
    )
    seconds: float | None = Field(
        None, gt=0, description="The most seconds that one run may take; unlimited by default."
    )


AUTO_BUDGET = Budget(model_calls=12, tokens=30_000)
"""What a search with ``ask=auto`` spends at most to refine, unless its budget says otherwise."""


def _parse_target(value: object) -> object:
    if isinstance(value, str):
        return Target.parse(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return Target.parse(value)
    return None if value == {} else value


WrittenTarget = Annotated[Target | None, BeforeValidator(_parse_target)]
"""A target, which may be given as one text or several; optional."""


class SearchParameters(Frozen):
    """The parameters of a search."""

    attributes: tuple[str, ...] = Field(
        (),
        description=(
            "The attributes whose groups get fair exposure, such as gender; by default all "
            "attributes of the source."
        ),
    )
    intersect: bool = Field(
        False,
        description=(
            "Treat the attributes as one. Its groups are their combinations, such as women in "
            "Africa."
        ),
    )
    target: WrittenTarget = Field(
        None,
        description=(
            "The exposure that each group should get: a mixture of population, uniform, corpus, "
            "merit and retrieved, such as retrieved:0.5,uniform:0.5, or shares of one attribute, "
            "such as gender=female:0.5,male:0.5. By default it is retrieved:0.5,population:0.5. A "
            "target that you give is pursued until each group is within a point of it, if "
            "fairness_weight is not set."
        ),
    )
    k: int = Field(
        20, ge=1, le=10_000, description="How many results to return and to measure exposure over."
    )
    page: int = Field(
        1,
        ge=1,
        le=1_000,
        description=(
            "Which k results to return, counted from 1. All pages come from one list: each is the "
            "fair list of what earlier pages left. A page beyond the end is empty."
        ),
    )
    method: Method = Field(
        "fairqr",
        description=(
            "How to search: fairqr weighs relevance and fairness, and asks a model if that helps; "
            "fair-qr is our reading of FAIR-QR, the loop of Chen & Fang (2025); the others are "
            "baselines and models that re-rank."
        ),
    )
    depth: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description=(
            "How many documents each query retrieves, at least k; the query itself retrieves at "
            "least 500, and where a model's words are evidence, those of a group at most 200. A "
            "model that re-ranks reads as many, unless ranking.depth is set. The default depends "
            "on the method."
        ),
    )
    pool: Pool | None = Field(
        None,
        description=(
            "Which documents the search re-ranks: those of the last round, or the union of all "
            "rounds. The default depends on the method."
        ),
    )
    rerank: Rerank | None = Field(
        None,
        description=(
            "How to order the pool: by relevance to the original query, by the scores of the "
            "original_query alone, by fusion of all rankings, or not at all (none); or the name of "
            "a model that re-ranks the method's own order. The default depends on the method."
        ),
    )
    final_step: FinalStep | None = Field(
        None,
        description=(
            "The re-ranker that picks the final k documents, or none. The step fair goes by "
            "estimates of relevance, so it takes no order of a model. The default depends on the "
            "method."
        ),
    )
    ranking: RankingSettings = Field(
        RankingSettings(), description="How a model re-ranks, if the method or rerank names one."
    )
    options: dict[str, Any] = Field({}, description="Options of the final step, by name.")
    ask: Ask | None = Field(
        None,
        description=(
            "When to ask the model to refine the query: always, never, or once, if it is expected "
            "to gain at least least_gain (auto, with the final step fair). The default depends on "
            "the method."
        ),
    )
    least_gain: float = Field(
        0.01,
        ge=0,
        allow_inf_nan=False,
        description=(
            "With ask=auto, how much the model must promise to add to relevance × fairness, by "
            "what it was measured to bring."
        ),
    )
    fairness_weight: float | None = Field(
        None,
        ge=0,
        le=HEAVIEST,
        description=(
            "How much fairness counts beside relevance in the method fairqr: 0 is the order of "
            "relevance. By default it is 1, or more if that is needed to reach a target that you "
            "give. If you set it, a target is only a direction."
        ),
    )
    front: tuple[Annotated[float, Field(ge=0, le=HEAVIEST)], ...] = Field(
        (),
        max_length=50,
        description=(
            "Other weights of fairness; the result says what relevance and fairness each of them "
            "would give with the same documents."
        ),
    )
    order: WithinGroups = Field(
        "engine",
        description=(
            "The order of documents of the same groups in the method fairqr: the engine's, in "
            "which those that are probably not relevant come last, or by estimated relevance "
            "(estimated)."
        ),
    )
    fairness: OverAttributes = Field(
        "mean",
        description=(
            "The fairness of a list with several attributes in the method fairqr: their mean, or "
            "that of the worst-off among them and their intersections in pairs (worst). A group of "
            "two attributes, such as women in Africa, is due the product of their targets."
        ),
    )
    spread: tuple[Ranks, ...] = Field(
        (),
        description=(
            "Count the fairness of the first so many results, such as 5,10, as much as that of the "
            "whole list in the method fairqr, so that one document at the top is not all that a "
            "group gets."
        ),
    )
    at_most: float | None = Field(
        None,
        gt=0,
        le=1,
        description=(
            "The highest share of exposure that a group, but for other, may have in the method "
            "fairqr, such as .15, whatever the target; in attributes with enough groups for that."
        ),
    )
    equal_chance: bool = Field(
        False,
        description=(
            "Whether the first results of the method fairqr, however many, have the same share of "
            "the expected relevance of each group, as nearly as whole documents allow. So no group "
            "is passed over because its relevance is less certain."
        ),
    )
    certify: bool = Field(
        True,
        description=(
            "Whether the result says how far the list can be from the best order of its documents, "
            "and what exposure costs there; this takes some milliseconds."
        ),
    )
    groups: Groups | None = Field(
        None,
        description=(
            "The groups to ask the model about in one round: the group that lacks most exposure "
            "(most), all groups that lack exposure (lacking), or all. The default depends on the "
            "method."
        ),
    )
    lack: Lack = Field(
        "difference",
        description=(
            "By what groups lack most: the difference of target and exposure, their ratio, or the "
            "group's term of the divergence, target · ln(target / exposure). The last two smooth "
            "both sides as the divergence does, and choose small groups more often."
        ),
    )
    final_round: FinalRound | None = Field(
        None,
        description=(
            "Without the fair step, which round the list is made of: the one nearest to the target "
            "(best), or the last one, even if the engine's own ranking is nearer (last)."
        ),
    )
    discount: DiscountText = Field(
        Discount(),
        description=(
            "How exposure falls with the rank: log2, trec, rbp(p), top_k(k), inverse_log, or "
            "weights(1, 0.6, …), those of the first ranks."
        ),
    )
    threshold: float = Field(
        DEFAULT_THRESHOLD,
        ge=0,
        description=(
            "Without the fair step, stop when the divergence from the target is at most this many "
            "nats."
        ),
    )
    direction: Direction = Field(
        "target_exposure",
        description=(
            "The direction of the Kullback-Leibler divergence: target_exposure is KL(target || "
            "exposure), exposure_target the reverse."
        ),
    )
    # Without smoothing, or with almost none, an absent group would be infinitely far away, and
    # rounds could not be compared.
    smoothing: float = Field(
        DEFAULT_SMOOTHING,
        ge=1e-12,
        lt=1,
        description=(
            "The share of a uniform distribution mixed into target and exposure before the "
            "divergence is computed."
        ),
    )
    patience: Whole = Field(
        1,
        ge=1,
        description=(
            "Stop after this many rounds that did not improve the ranking; with ask=auto, one "
            "round is the most."
        ),
    )
    max_iterations: int = Field(
        5, ge=0, le=100, description="The most rounds of refinement; with 0, no model refines."
    )
    max_groups: Whole = Field(
        8, ge=1, description="The most groups to ask about in one round, those that lack most."
    )
    word_weights: EvidenceWeights | None = Field(
        None,
        description=(
            "How much a model's words count as evidence of relevance, where the query itself "
            "counts 1; by default as measured for the model. If you set some, others are 0."
        ),
    )
    rrf_k: Whole = Field(
        RRF_K, ge=0, description="The constant of reciprocal rank fusion: 1 / (rrf_k + rank)."
    )
    prompts: dict[str, str] = Field(
        {},
        description=(
            "The versions of prompts, such as refine=v2; by default those that suit the model, as "
            "it was measured."
        ),
    )
    temperature: float | None = Field(
        None, ge=0, le=2, description="The temperature of refinement; by default the prompt's own."
    )
    seed: int | None = Field(
        None,
        description=(
            "The seed of refinement, if the model accepts one, and of sampled rankings. By "
            "default, sampling draws a seed and reports it."
        ),
    )
    budget: Budget = Field(
        Budget(),
        description=(
            "What one run may spend; then it returns the best result so far. With ask=auto, at "
            "most 12 calls and 30,000 tokens to refine, unless you set other limits."
        ),
    )


class Context(SearchParameters):
    """What a search is asked to do: its parameters, checked together."""

    kind: ClassVar[str] = "search"
    """Which of the three graphs does it."""
    review: bool = Field(
        False,
        description=(
            "Whether a person looks at the model's words before they are searched with: the node "
            "`review` then calls LangGraph's `interrupt`, so the graph needs a checkpointer."
        ),
    )

    if not TYPE_CHECKING:  # pydantic's own signature has the types of the fields

        def __init__(self, **values: Any) -> None:
            # LangGraph makes contexts of dicts this way, and its callers see what is raised here.
            for name in values:
                if name not in type(self).model_fields:
                    raise unknown_parameter(name, type(self).model_fields)
            with parameter_errors():
                super().__init__(**values)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.target is not None and "relevance" in self.target.parts:
            raise TargetError(
                "The target part 'relevance' is only available in evaluation; a search knows no "
                "judgements, so use 'retrieved' instead."
            )
        self._check_ranking()
        self._check_final_step()
        if self.page > 1 and self.kind != "search":
            raise ValueError("only a search has pages; leave page out")
        unread = ", ".join(self._unread_parameters())
        if unread:
            raise ValueError(
                f"nothing reads {unread} where the final step is '{self.strategy.final_step}'; "
                "leave it out"
            )
        return self

    def _check_ranking(self) -> None:
        """Check how many documents are read, and whether a model reads them."""
        if self.depth is not None and self.depth < self.k:
            raise ValueError(f"depth is {self.depth}, but k is {self.k}; retrieve at least as many")
        if self.strategy.ranker is None and self.ranking != RankingSettings():
            raise ValueError(
                "ranking says how a model re-ranks, but no model re-ranks here; leave it out, or "
                f"name a ranker as method or rerank: {', '.join(READS)}"
            )

    def _check_final_step(self) -> None:
        """Check that the final step can work with the other parts of the strategy."""
        ranker = self.strategy.ranker
        step = self.strategy.final_step
        if step in ("fair", "none") and self.options:
            raise ValueError(f"the final step '{step}' has no options; leave them out")
        if step == "fair" and ranker is not None:
            raise ValueError(
                f"the final step 'fair' goes by estimates of relevance, which {ranker} does not "
                "make; leave rerank out, or set another final_step, such as exposure-aware"
            )
        if step != "fair" and self.ask == "auto":
            raise ValueError(
                "ask=auto goes by what the final step 'fair' can gain; set ask to always or never"
            )

    def _unread_parameters(self) -> list[str]:
        """Return the parameters that were set, but that nothing reads with this final step."""
        names: tuple[str, ...] = (*OF_FAIR_STEP, "front", "certify", "least_gain")
        if self.strategy.final_step == "fair":
            names = ("threshold", "final_round")
        fields = type(self).model_fields
        return [name for name in names if getattr(self, name) != fields[name].default]

    @property
    def strategy(self) -> Strategy:
        """The method's strategy, with this context's overrides."""
        return _strategy(
            self.method,
            self.rerank,
            self.k,
            self.depth,
            self.ranking.depth,
            ask=self.ask,
            groups=self.groups,
            final_round=self.final_round,
            pool=self.pool,
            final_step=self.final_step,
        )

    @classmethod
    def of(cls, **values: object) -> Self:
        """Check the values of a context; see :func:`checked_context`."""
        return checked_context(cls, values)

    @property
    def rounds(self) -> int:
        """How many rounds of refinement there may be; 0 for a method that does not refine."""
        strategy = self.strategy
        return self.max_iterations if strategy.refines and strategy.ask != "never" else 0

    @property
    def words_are_evidence(self) -> bool:
        """Whether a model's words are evidence of relevance, rather than words of the query."""
        return self.strategy.rerank == "relevance"

    @property
    def pursued(self) -> tuple[str, ...]:
        """The attributes whose target is pursued as the user wrote it; ``*`` for all of them."""
        if self.target is None or self.fairness_weight is not None:
            return ()
        # Beside shares of some attributes, the default parts are what the others get.
        has_default_parts = self.target.parts == DEFAULT_TARGET.parts
        if self.target.shares and has_default_parts:
            return tuple(self.target.shares)
        return ("*",)

    @property
    def fair_step(self) -> FairStep:
        """The fair step with these options."""
        return FairStep(
            weight=self.fairness_weight,
            order=self.order,
            fairness=self.fairness,
            spread=self.spread,
            at_most=self.at_most,
            equal_chance=self.equal_chance,
            pursue=self.pursued,
        )

    @property
    def effective_target(self) -> Target:
        """The given target, or the default."""
        return DEFAULT_TARGET if self.target is None else self.target

    @property
    def aims_at_merit(self) -> bool:
        """Whether the target has the part ``merit``, for which near duplicates count as one."""
        return bool(self.effective_target.parts.get("merit"))


C = TypeVar("C", bound=BaseModel)


def checked_context(kind: type[C], values: Mapping[str, object]) -> C:
    """Check the values of a context, or of another model; None means the default.

    Args:
        kind: The class.
        values: The fields by name, and for an answer or a probe those of its own field, which take
            precedence over fields of the context with the same name. ``attribute`` takes one
            attribute or several, in place of ``attributes``.

    Raises:
        InputError: A name or a value is wrong; the message names it and what is allowed.
    """
    options = {name: value for name, value in values.items() if value is not None}
    settings_name = getattr(kind, "kind", "")
    if settings_name in kind.model_fields:
        _gather_settings(kind, settings_name, options)
    else:
        _check_names(options, list(kind.model_fields))
    attribute = options.pop("attribute", None)
    if attribute is not None:
        if "attributes" in options:
            raise InputError("Give 'attribute' or 'attributes', not both.")
        options["attributes"] = [attribute] if isinstance(attribute, str) else attribute
    return kind(**options)


def _gather_settings(kind: type[BaseModel], name: str, options: dict[str, Any]) -> None:
    """Move the options of an answer or a probe into an option of their own, such as ``probe``."""
    settings: Any = kind.model_fields[name].annotation
    fields = [field for field in kind.model_fields if field != name]
    _check_names(options, [*fields, *settings.model_fields])
    values = {}
    for field in settings.model_fields:
        if field in options:
            values[field] = options.pop(field)
    if values or kind.model_fields[name].is_required():
        options[name] = values


def _check_names(options: Mapping[str, object], fields: Sequence[str]) -> None:
    """Check that each option is a field.

    Raises:
        InputError: One is not; the message suggests fields with similar names.
    """
    for name in options:
        if name not in fields and name != "attribute":
            raise unknown_parameter(name, list(dict.fromkeys(fields)))


def unknown_parameter(name: str, parameters: Collection[str]) -> InputError:
    """Return the error about an unknown parameter; it suggests similar ones."""
    advice = nearest_names(name, parameters) or f"use {', '.join(parameters)}."
    return InputError(f"There is no parameter '{one_line(name, 80)}'; {advice}")


def require_context(kind: type[Context], context: object) -> None:
    """Check that something is a context of a kind, or None.

    Raises:
        InputError: It is something else.
    """
    if context is not None and not isinstance(context, kind):
        raise InputError(
            f"The context must be a fairqr.{kind.__name__}, not {type(context).__name__}."
        )
