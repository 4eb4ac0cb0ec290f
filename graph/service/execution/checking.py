"""What the service offers, and checks of requests against that and the limits."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fairqr.agents.attribution.attributor import AttributorName
from fairqr.agents.attribution.opening import ATTRIBUTORS
from fairqr.agents.generators import INPUT_TOKENS
from fairqr.agents.models.opening import CAUSAL, SEQ2SEQ, require_model
from fairqr.agents.models.recorded import SHIPPED_NAMES
from fairqr.agents.models.replies import RECORDED
from fairqr.agents.refiners.feedback import FeedbackRefiner
from fairqr.base import errors
from fairqr.base.settings import DEFAULT_POOL, default_corpus, default_model
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.answer.parts import PROMPT as ANSWER
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.search.context import METHODS, Context, Method
from fairqr.graph.search.rankers import ASKED
from fairqr.graph.service.configuration import ModelEntry, ServiceLimits, ServiceSettings
from fairqr.graph.service.execution.requests import AuditRequest, RunRequest
from fairqr.graph.service.records import Kind
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.rerankers.registry import TRAINED
from fairqr.retrieval.sources.catalog import NAME, Catalog
from fairqr.retrieval.sources.corpus import BUILT_IN
from fairqr.retrieval.sources.source import Source, load_source

NOTHING = "none"
"""The name to give if nothing should judge answers."""

NEURAL = ("monot5", "monobert")
"""Rankers with a model of their own; the service offers those that its models list."""

LONGEST_NAME = 200
"""The most characters of a name that matches a pattern."""

_LIMITED = ("k", "depth", "max_iterations", "samples", "documents", "pairs")
"""Parameters with a limit of their name."""

_CONTEXTS = {"search": Context.of, "answer": AnswerContext.of, "probe": ProbeContext.of}
_OWN = ("corpus", "retriever", "model", "keep", "query", "question", "attributor")
"""Parameters of requests that contexts do not have."""


class Capabilities:
    """What a request may name.

    Args:
        settings: The settings of the service.
        catalog: What can be searched.
        model: The model for requests that name none. Defaults to the configured model if it is
            offered, and otherwise to the first offered model.

    Attributes:
        sources: The sources whose files the configuration lists, by name.
        default_model: The model for requests that name none.
        prompts: The prompts.

    Raises:
        SourceError: The file of a source is wrong.
        ConfigError: Two sources have the same name, or there is no such attributor, or its model
            is not offered.
        InputError: A source has the name of a built-in corpus or an index.
    """

    def __init__(
        self, settings: ServiceSettings, catalog: Catalog, model: str | None = None
    ) -> None:
        self._settings, self._catalog, self.prompts = settings, catalog, PromptLibrary()
        usual = (default_model(), FeedbackRefiner.name)
        self._models = settings.models or {name: ModelEntry() for name in usual}
        exact = [name for name in self._models if "*" not in name]
        wanted = model or default_model()
        is_offered = _named_by(self._models, wanted) or not exact
        self.default_model = wanted if is_offered else exact[0]
        self.sources: dict[str, Source] = {}
        for file in settings.sources:
            source = load_source(file)
            catalog.refuse_taken_by_others(source.name, file)
            if source.name in self.sources:
                raise errors.ConfigError(
                    f"Two sources of the service are named '{source.name}'; rename one."
                )
            self.sources[source.name] = source
        for judge in settings.attributors:
            _require_attributor(judge, self._models)
        for name in settings.models:
            _require_model(name)
        # Every listed source is offered; `corpora` limits the rest.
        self._corpora = settings.corpora and (*settings.corpora, *self.sources)
        self._first_corpora = self._corpora or (default_corpus(),)

    def corpora(self) -> list[str]:
        """Return the names of all offered corpora, the default first."""
        known = [*dict.fromkeys((*self.sources, *BUILT_IN, *self._catalog.names()))]
        if self._corpora:
            known = [name for name in known if _named_by(self._corpora, name)]
        first = next((name for name in self._first_corpora if name in known), None)
        return sorted(known, key=lambda name: name != first)

    def corpus(self, name: str | None) -> str:
        """Return the name of the corpus to search; None means the default.

        Raises:
            NotAllowedError: It is not offered.
            IndexNotFoundError: It does not exist.
        """
        if name is None:
            # Without reading folders, if possible: this happens in each request.
            usual = filter(self._is_known, self._first_corpora)
            if name := next(usual, None) or next(iter(self.corpora()), None):
                return name
            raise errors.IndexNotFoundError(
                "The service has no index yet; create one with 'fairqr index create'."
            )
        is_name = NAME.fullmatch(name)  # anything else could be a path
        if self._corpora and is_name:
            _require("index", "indexes", self._corpora, name)
        # Last, since it reads folders and happens twice in each run.
        if not is_name or not self._is_known(name):
            raise errors.IndexNotFoundError(
                f"There is no index '{errors.one_line(name, 60)}'; GET /v1/indexes lists all."
            )
        return name

    def _is_known(self, name: str) -> bool:
        return name in BUILT_IN or name in self.sources or name in self._catalog.names()

    def link(self, corpus: str | None) -> str | None:
        """Return the field with the documents' web addresses, if the source names one."""
        name = self.corpus(corpus)
        source = self.sources.get(name)
        if source is None and name in self._catalog.sources():
            source, _ = self._catalog.source(name)
        return source.link if source else None

    def models(self) -> list[str]:
        """Return the configured names and patterns of models, the default first."""
        names = [name for name in self._models if name not in NEURAL]
        return sorted(names, key=lambda name: name != self.default_model)

    def model(self, name: str | None) -> tuple[str, ModelEntry]:
        """Return the name and the configuration of a model; None means the default.

        Raises:
            NotAllowedError: It is not offered.
        """
        name = self.default_model if name is None else name
        listed = _require("model", "models", self._models, name)
        if "*" in listed and _names_file_of_replies(name):
            raise errors.NotAllowedError(
                f"The model '{errors.one_line(name, 60)}' is not offered; the service lists files "
                "of replies by their whole names."
            )
        return name, self._models[listed]

    def attributor(self, name: str | None) -> str:
        """Return the name of the judge of answers; None means the default, the first that is named.

        Raises:
            NotAllowedError: It is not offered.
            InputError: Its options are wrong.
        """
        offered = self._settings.attributors
        if name is None:
            named = (judge for judge in offered if "*" not in judge)
            return next(named, NOTHING)
        if name != NOTHING:
            parsed = AttributorName.parse(name)
            _require("attributor", "models", offered, name.partition("?")[0])
            if parsed.kind == "llm" and parsed.model:
                self.model(parsed.model)
        return name

    def methods(self) -> list[Method]:
        """Return the offered methods; a request cannot name a file of weights."""
        own = [name for name in NEURAL if _named_by(self._models, name)]
        return [name for name in METHODS if name in own or name not in (*TRAINED, *NEURAL)]

    def check_steps(self, context: Context) -> None:
        """Check the prompts, the ranker and the final step of a context.

        Raises:
            PromptError: A version does not exist, or its file is wrong.
            InputError: An option names a file of weights.
            NotAllowedError: A step, or the ranker's weights, is not offered.
        """
        for prompt in context.prompts.items():
            self.prompts.get(*prompt)
        strategy, weights = context.strategy, context.ranking.weights
        if strategy.final_step in TRAINED:
            raise errors.NotAllowedError(
                f"The final step '{strategy.final_step}' reads a file of weights, which a request "
                "cannot name; choose another step, or use the command."
            )
        if "weights" in context.options:
            raise errors.InputError(
                "A request cannot name a file of weights; leave it out of 'options'."
            )
        name = f"{strategy.ranker}:{weights}" if weights else strategy.ranker
        if name and (weights or name in NEURAL):
            _require("ranker", "models", self._models, name)


def _named_by(offered: Collection[str], name: str) -> str | None:
    """Return which of these names and patterns has a name, itself before any pattern.

    A name that is a pattern matches none. A name that no model could have matches no pattern.
    """
    if "*" not in name and name in offered:
        return name
    if not 0 < len(name) <= LONGEST_NAME or "*" in name or name != "".join(name.split()):
        return None
    return next((one for one in offered if fnmatchcase(name, one)), None)


def _require(kind: str, listed: str, offered: Collection[str], name: str) -> str:
    """Return which of these names and patterns has a name; see :func:`_named_by`.

    Raises:
        NotAllowedError: None of them has it.
    """
    if found := _named_by(offered, name):
        return found
    raise errors.NotAllowedError(
        f"The {kind} '{errors.one_line(name, 60)}' is not offered; GET /v1/{listed} lists all."
    )


def _names_file_of_replies(model: str) -> bool:
    """Return whether a model is a file on this machine; those that ship are none."""
    prefix, _, file = model.partition(":")
    return prefix == RECORDED and file not in SHIPPED_NAMES


def _require_model(name: str) -> None:
    """Check the name of a model in the configuration, unless it has a ``*`` or is of weights.

    Raises:
        ConfigError: There is no such model.
    """
    is_of_weights = name.partition(":")[0] in METHODS
    if "*" in name or is_of_weights:
        return
    try:
        require_model(name)
    except errors.ModelUnavailableError as error:
        raise errors.ConfigError(f"service.models: {error}") from None


def _require_attributor(name: str, models: Collection[str]) -> None:
    """Check the name of an attributor, which may have a ``*``, in the configuration.

    Args:
        name: The name.
        models: The names and patterns of the models that are offered.

    Raises:
        ConfigError: There is none, or its model is not offered.
    """
    parts = AttributorName.parse(name)
    kinds = [form.partition("[")[0] for form in ATTRIBUTORS]
    judging = parts.model if parts.kind == "llm" else None
    if judging and "*" not in judging and not _named_by(models, judging):
        raise errors.ConfigError(
            f"service.attributors names '{errors.one_line(name, 60)}', and its model is not "
            "offered; add it to service.models."
        )
    if not any(fnmatchcase(known, parts.kind) for known in kinds):
        raise errors.ConfigError(
            f"service.attributors names '{errors.one_line(name, 60)}', and there is no such "
            f"attributor; choose from {', '.join(kinds)}."
        )


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A checked request.

    Attributes:
        kind: The kind of the run.
        query: The query or the question; of an audit, a name.
        context: The context of the graph; of an audit, the whole request.
        body: The request with its defaults filled in, but for what an open engine decides, such
            as an answer's ``k``. Checking it again gives the same request.
    """

    kind: Kind
    query: str
    context: Any
    body: dict[str, Any]


def check_request(
    kind: Kind, run_request: RunRequest, limits: ServiceLimits, capabilities: Capabilities
) -> CheckedRequest:
    """Check a request.

    Args:
        kind: The kind of the run.
        run_request: The request, of the type of its kind.
        limits: The limits of the service.
        capabilities: What the service offers.

    Raises:
        InputError: A parameter is wrong; the message names it.
        LimitError: The request exceeds a limit.
        NotAllowedError: The request names something that is not offered.
    """
    values = _limited(kind, run_request, limits)
    limits.check("depth", values["ranking"]["depth"], "ranking.depth")
    for name, value in values["budget"].items():
        limits.check(name, value, f"budget.{name}")
        values["budget"][name] = getattr(limits, name) if value is None else value
    if kind == "probe" and values["depth"] is None and values["k"] > limits.probe_documents:
        values["depth"] = limits.probe_documents
    query = values["question" if kind == "answer" else "query"]
    check_query(query, limits)
    values["corpus"] = capabilities.corpus(values["corpus"])
    values["model"], _ = capabilities.model(values["model"])
    given = {name: value for name, value in values.items() if name not in _OWN}
    if kind == "answer":
        values["attributor"] = capabilities.attributor(values["attributor"])
        pool = min(DEFAULT_POOL, limits.k, limits.depth)
        given["k"] = given["k"] or max(pool, given["documents"])
    context = _with_depth(_CONTEXTS[kind](**given), limits)
    values["retriever"] = context.strategy.searched_by(values["retriever"])
    capabilities.check_steps(context)
    if isinstance(context, AnswerContext):
        is_judged = AttributorName.parse(values["attributor"]).kind == "llm"
        prompt = capabilities.prompts.get(ANSWER, context.prompts.get(ANSWER))
        tokens = INPUT_TOKENS + prompt.defaults.max_tokens
        context = _with_answers(context, is_judged, tokens, limits)
    _check_model(kind, values["model"], context)
    return CheckedRequest(kind, query, context, values)


def check_audit(
    audit_request: AuditRequest, limits: ServiceLimits, capabilities: Capabilities
) -> CheckedRequest:
    """Check a request for an audit; see :func:`check_request`."""
    limits.check("audit_queries", len(audit_request.queries), "The number of queries")
    for it in audit_request.queries:
        check_query(it.query, limits)
    values = _limited("audit", audit_request, limits)
    if "depth" not in audit_request.model_fields_set:
        values["depth"] = max(values["depth"], values["k"] + 1)
        limits.check("depth", values["depth"], "The depth, by default more than k,")
    values["corpus"] = capabilities.corpus(audit_request.corpus)
    return CheckedRequest("audit", audit_request.name, AuditRequest.model_validate(values), values)


def check_query(query: str, limits: ServiceLimits) -> None:
    """Check a query or a question.

    Raises:
        QueryError: It is empty.
        LimitError: It is too long.
    """
    if not query.strip():
        raise errors.QueryError("The query is empty; write what to search for.")
    limits.check("query_characters", len(query), "The length of the query")


def _limited(
    kind: Kind, request: RunRequest | AuditRequest, limits: ServiceLimits
) -> dict[str, Any]:
    """Return the values of a request, each within its limit; a default above its limit is lowered.

    Raises:
        LimitError: A given value exceeds its limit.
    """
    values = request.model_dump(mode="json")
    for name in _LIMITED:
        limit = "probe_documents" if kind == "probe" and name == "depth" else name
        if name in request.model_fields_set:
            limits.check(limit, values[name], name)
        elif values.get(name) is not None:
            values[name] = min(values[name], getattr(limits, limit))
    if "k" not in request.model_fields_set and values.get("k") is not None:
        # As many documents are retrieved; by an audit, one more.
        most = limits.depth - 1 if kind == "audit" else limits.depth
        values["k"] = max(1, min(values["k"], most))
    return values


def _with_depth(context: Context, limits: ServiceLimits) -> Context:
    """Lower the method's own depth to the limit.

    Raises:
        LimitError: The limit is below the number of documents to show.
    """
    strategy = context.strategy
    if (strategy.depth or 0) <= limits.depth:
        return context
    limits.check("depth", context.k, "k")
    ranking = context.ranking
    if strategy.ranker:
        ranking = ranking.model_copy(update={"depth": min(strategy.reads, limits.depth)})
    return context.model_copy(update={"depth": limits.depth, "ranking": ranking})


def _with_answers(
    context: AnswerContext, is_judged: bool, tokens: int, limits: ServiceLimits
) -> AnswerContext:
    """Reserve what the answers may cost; the rest is the budget of the search before them.

    Args:
        context: The context of the run.
        is_judged: Whether a model also judges each document.
        tokens: The most tokens that one answer may cost.
        limits: The limits of the service.

    Raises:
        LimitError: The answers may cost more than a limit allows, or the hypothesis is too long.
    """
    answer, left = context.answer, {}
    limits.check("query_characters", len(answer.hypothesis), "The length of the hypothesis")
    calls = 1 + answer.documents * is_judged
    for limit, each in (("model_calls", calls), ("tokens", tokens)):
        needed = answer.samples * each
        limits.check(limit, needed, f"What {answer.samples:,} samples may take")
        left[limit] = min(getattr(context.budget, limit), getattr(limits, limit) - needed)
    return context.model_copy(update={"budget": context.budget.model_copy(update=left)})


def _check_model(kind: Kind, name: str, context: Context) -> None:
    """Check that the model can do what is asked, before anything is spent.

    Raises:
        InputError: It cannot.
    """
    refine, rank, write = "refine queries", "rank", "write answers"
    skills = {FeedbackRefiner.name: refine, RECORDED: refine, CAUSAL: rank, SEQ2SEQ: write}
    only = skills.get(name.partition(":")[0])
    ranks = kind == "probe" or context.strategy.ranker in ASKED
    needed = {refine: context.rounds > 0, rank: ranks, write: kind == "answer"}
    for what, is_needed in needed.items():
        if is_needed and only not in (None, what):
            raise errors.InputError(
                f"The model '{errors.one_line(name, 60)}' can only {only}, and this request has it "
                f"{what}; choose another model or method."
            )
