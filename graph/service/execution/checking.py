"""Checks of requests against what the service offers, and against its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairqr.agents.attribution.attributor import AttributorName
from fairqr.agents.generators import INPUT_TOKENS
from fairqr.agents.models.opening import CAUSAL, SEQ2SEQ
from fairqr.agents.models.replies import RECORDED
from fairqr.agents.refiners.feedback import FeedbackRefiner
from fairqr.base import errors
from fairqr.base.settings import DEFAULT_POOL
from fairqr.graph.answer.context import AnswerContext
from fairqr.graph.answer.parts import PROMPT as ANSWER
from fairqr.graph.probe.context import ProbeContext
from fairqr.graph.search.context import Context
from fairqr.graph.search.rankers import ASKED
from fairqr.graph.service.configuration import ServiceLimits
from fairqr.graph.service.execution.capabilities import Capabilities
from fairqr.graph.service.execution.requests import AuditRequest, RunRequest
from fairqr.graph.service.records import Kind

_LIMITED = ("k", "depth", "max_iterations", "samples", "documents", "pairs")
"""Parameters with a limit of their name."""

_CONTEXTS = {
    "search": Context.of,
    "answer": AnswerContext.of,
    "probe": ProbeContext.of,
}
_NOT_IN_CONTEXTS = frozenset(
    {"corpus", "retriever", "model", "keep", "query", "question", "attributor"}
)
"""Parameters of requests that contexts do not have."""

_REFINE = "refine queries"
_RANK = "rank"
_WRITE = "write answers"

_ONLY_SKILLS = {
    FeedbackRefiner.name: _REFINE,
    RECORDED: _REFINE,
    CAUSAL: _RANK,
    SEQ2SEQ: _WRITE,
}
"""What models can do that can do only one thing, by the start of their names."""


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
    _limit_budget(values["budget"], limits)
    if kind == "probe":
        _limit_depth_of_probe(values, limits)

    query_parameter = "question" if kind == "answer" else "query"
    query = values[query_parameter]
    check_query(query, limits)

    values["corpus"] = capabilities.corpus(values["corpus"])
    values["model"], _ = capabilities.model(values["model"])
    parameters = {name: values[name] for name in values if name not in _NOT_IN_CONTEXTS}
    if kind == "answer":
        values["attributor"] = capabilities.attributor(values["attributor"])
        default_pool = min(DEFAULT_POOL, limits.k, limits.depth)
        parameters["k"] = parameters["k"] or max(default_pool, parameters["documents"])
    context = _with_depth(_CONTEXTS[kind](**parameters), limits)

    values["retriever"] = context.strategy.searched_by(values["retriever"])
    capabilities.check_steps(context)
    if isinstance(context, AnswerContext):
        is_judged = AttributorName.parse(values["attributor"]).kind == "llm"
        prompt = capabilities.prompts.get(ANSWER, context.prompts.get(ANSWER))
        tokens = INPUT_TOKENS + prompt.defaults.max_tokens
        context = _with_answers(context, is_judged, tokens, limits)
    _check_model(kind, values["model"], context)
    return CheckedRequest(kind, query, context, values)


def _limit_budget(budget: dict[str, Any], limits: ServiceLimits) -> None:
    """Check a budget; what it leaves open becomes the limit.

    Raises:
        LimitError: A value exceeds its limit.
    """
    for name, value in budget.items():
        limits.check(name, value, f"budget.{name}")
        if value is None:
            budget[name] = getattr(limits, name)


def _limit_depth_of_probe(values: dict[str, Any], limits: ServiceLimits) -> None:
    """Let no more documents take part in a probe than the limit allows, by default."""
    if values["depth"] is None and values["k"] > limits.probe_documents:
        values["depth"] = limits.probe_documents


def check_audit(
    audit_request: AuditRequest, limits: ServiceLimits, capabilities: Capabilities
) -> CheckedRequest:
    """Check a request for an audit; see :func:`check_request`."""
    limits.check("audit_queries", len(audit_request.queries), "The number of queries")
    for audited_query in audit_request.queries:
        check_query(audited_query.query, limits)

    values = _limited("audit", audit_request, limits)
    if "depth" not in audit_request.model_fields_set:
        values["depth"] = max(values["depth"], values["k"] + 1)
        limits.check("depth", values["depth"], "The depth, by default more than k,")
    values["corpus"] = capabilities.corpus(audit_request.corpus)

    checked = AuditRequest.model_validate(values)
    return CheckedRequest("audit", audit_request.name, checked, values)


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
    explicit = request.model_fields_set
    for name in _LIMITED:
        limit = name
        if kind == "probe" and name == "depth":
            limit = "probe_documents"
        if name in explicit:
            limits.check(limit, values[name], name)
        elif values.get(name) is not None:
            values[name] = min(values[name], getattr(limits, limit))

    if "k" not in explicit and values.get("k") is not None:
        # As many documents are retrieved; by an audit, one more.
        most_documents = limits.depth
        if kind == "audit":
            most_documents -= 1
        values["k"] = max(1, min(values["k"], most_documents))
    return values


def _with_depth(context: Context, limits: ServiceLimits) -> Context:
    """Lower the method's usual depth to the limit.

    Raises:
        LimitError: The limit is below the number of documents to show.
    """
    strategy = context.strategy
    if (strategy.depth or 0) <= limits.depth:
        return context

    limits.check("depth", context.k, "k")
    ranking = context.ranking
    if strategy.ranker:
        ranked_depth = min(strategy.reads, limits.depth)
        ranking = ranking.model_copy(update={"depth": ranked_depth})
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
    answer = context.answer
    limits.check("query_characters", len(answer.hypothesis), "The length of the hypothesis")

    calls = 1
    if is_judged:
        calls += answer.documents
    costs_per_sample = {"model_calls": calls, "tokens": tokens}

    search_budget: dict[str, int] = {}
    for limit, cost in costs_per_sample.items():
        reserved = answer.samples * cost
        limits.check(limit, reserved, f"What {answer.samples:,} samples may take")
        remaining = getattr(limits, limit) - reserved
        search_budget[limit] = min(getattr(context.budget, limit), remaining)
    budget = context.budget.model_copy(update=search_budget)
    return context.model_copy(update={"budget": budget})


def _check_model(kind: Kind, name: str, context: Context) -> None:
    """Check that the model can do what the request needs, before anything is spent.

    Raises:
        InputError: It cannot.
    """
    only_skill = _ONLY_SKILLS.get(name.partition(":")[0])
    if only_skill is None:
        return

    needed_skills = []
    if context.rounds > 0:
        needed_skills.append(_REFINE)
    if kind == "probe" or context.strategy.ranker in ASKED:
        needed_skills.append(_RANK)
    if kind == "answer":
        needed_skills.append(_WRITE)
    for skill in needed_skills:
        if skill != only_skill:
            raise errors.InputError(
                f"The model '{errors.one_line(name, 60)}' can only {only_skill}, and this request "
                f"has it {skill}; choose another model or method."
            )
