"""Checks of requests: their types, the caps, and what the service offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairqr.agents.attribution.attributor import AttributorName
from fairqr.agents.generators import INPUT_TOKENS
from fairqr.agents.models.opening import CAUSAL, SEQ2SEQ
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.base.errors import InputError, QueryError, one_line
from fairqr.base.settings import DEFAULT_POOL
from fairqr.graph.answer.context import AnswerContext, answer_context
from fairqr.graph.probe.context import probe_context
from fairqr.graph.search.context import Context, make_context
from fairqr.graph.search.rankers import ASKED
from fairqr.graph.service.configuration import Caps
from fairqr.graph.service.engine.offers import Offers
from fairqr.graph.service.engine.requests import AuditRequest, RunRequest
from fairqr.graph.service.records import Kind

_CAPPED = ("k", "depth", "max_iterations", "samples", "documents", "pairs")
"""Parameters with a cap of their name."""

_CONTEXTS = {"search": make_context, "answer": answer_context, "probe": probe_context}

_OF_THE_SERVICE = frozenset(
    ("corpus", "retriever", "model", "base_url", "keep", "query", "question", "attributor")
)


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request.

    Attributes:
        kind: The kind of the run.
        query: The query or the question; of an audit, a name.
        context: The context of the graph; of an audit, the whole request.
        body: The request with all defaults filled in. Checking it again gives the same request.
    """

    kind: Kind
    query: str
    context: Any
    body: dict[str, Any]


def check_request(kind: Kind, asked: RunRequest, caps: Caps, offers: Offers) -> Request:
    """Check a request.

    Args:
        kind: The kind of the run.
        asked: The request, of the type of its kind.
        caps: The caps of the service.
        offers: What the service offers.

    Raises:
        InputError: A parameter is wrong; the message names it.
        CapError: The request exceeds a cap.
        NotAllowedError: The request names something that is not offered.
    """
    values = _capped(kind, asked, caps)
    query = values["question" if kind == "answer" else "query"]
    check_query(query, caps)
    values["corpus"] = offers.corpus(values["corpus"])
    values["model"], entry = offers.model(values["model"])
    values["base_url"] = offers.base_url(values["base_url"], entry)
    if kind == "answer":
        values["attributor"] = offers.attributor(values["attributor"])
    context = _within(_context(kind, values), caps)
    values["retriever"] = context.strategy.searched_by(values["retriever"])
    offers.check_prompts(context.prompts)
    offers.check_steps(context)
    if isinstance(context, AnswerContext):
        is_judged = AttributorName.parse(values["attributor"]).kind == "llm"
        tokens = INPUT_TOKENS + offers.answer_tokens(context.prompts)
        context = _with_answers(context, is_judged, tokens, caps)
    _check_model(kind, values["model"], values["base_url"], context)
    return Request(kind, query, context, values)


def check_audit(asked: AuditRequest, caps: Caps, offers: Offers) -> Request:
    """Check a request for an audit; see :func:`check_request`."""
    caps.check("audit_queries", len(asked.queries), "The number of queries")
    for it in asked.queries:
        check_query(it.query, caps)
    caps.check("k", asked.k, "k")
    depth = max(min(asked.depth, caps.depth), asked.k + 1)
    if "depth" in asked.model_fields_set:
        caps.check("depth", asked.depth, "depth")
        depth = asked.depth
    asked = asked.model_copy(update={"corpus": offers.corpus(asked.corpus), "depth": depth})
    return Request("audit", asked.name, asked, asked.model_dump(mode="json"))


def check_query(query: str, caps: Caps) -> None:
    """Check a query or a question.

    Raises:
        QueryError: It is empty.
        CapError: It is too long.
    """
    if not query.strip():
        raise QueryError("The query is empty; write what to search for.")
    caps.check("query_characters", len(query), "The length of the query")


def _capped(kind: Kind, asked: RunRequest, caps: Caps) -> dict[str, Any]:
    """Return the values of a request, each within its cap.

    We lower a default above its cap instead of refusing it, and fill in a missing budget.

    Raises:
        CapError: A given value exceeds its cap.
    """
    values = asked.model_dump(mode="json")
    for name in _CAPPED:
        cap = "probe_documents" if kind == "probe" and name == "depth" else name
        if name in asked.model_fields_set:
            caps.check(cap, values[name], name)
        elif values.get(name) is not None:
            values[name] = min(values[name], getattr(caps, cap))
    caps.check("depth", values["ranking"]["depth"], "ranking.depth")
    if kind == "probe" and values["depth"] is None and values["k"] > caps.probe_documents:
        values["depth"] = caps.probe_documents
    budget = values["budget"]
    for name, value in budget.items():
        caps.check(name, value, f"budget.{name}")
        budget[name] = getattr(caps, name) if value is None else value
    return values


def _context(kind: Kind, values: Mapping[str, Any]) -> Context:
    """Return the context, as the same call of the Python API makes it."""
    options = {name: value for name, value in values.items() if name not in _OF_THE_SERVICE}
    if kind == "answer" and options["k"] is None:
        options["k"] = max(DEFAULT_POOL, options["documents"])
    return _CONTEXTS[kind](**options)


def _within(context: Context, caps: Caps) -> Context:
    """Lower the method's own depth to the cap.

    Raises:
        CapError: The cap is below the number of documents to show.
    """
    strategy = context.strategy
    if (strategy.depth or 0) <= caps.depth:
        return context
    caps.check("depth", context.k, "k")
    ranking = context.ranking
    if strategy.ranker:
        ranking = ranking.model_copy(update={"depth": min(strategy.reads, caps.depth)})
    return context.model_copy(update={"depth": caps.depth, "ranking": ranking})


def _with_answers(
    context: AnswerContext, is_judged: bool, tokens: int, caps: Caps
) -> AnswerContext:
    """Reserve what the answers may cost; the rest is the budget of the search before them.

    Args:
        context: The context of the run.
        is_judged: Whether a model also judges each document.
        tokens: The most tokens that one answer may cost.
        caps: The caps of the service.

    Raises:
        CapError: The answers may cost more than a cap allows, or the hypothesis is too long.
    """
    asked, left = context.answer, {}
    caps.check("query_characters", len(asked.hypothesis), "The length of the hypothesis")
    calls = 1 + asked.documents * is_judged
    for cap, each in (("model_calls", calls), ("tokens", tokens)):
        needed = asked.samples * each
        caps.check(cap, needed, f"What {asked.samples:,} samples may take")
        left[cap] = min(getattr(context.budget, cap), getattr(caps, cap) - needed)
    return context.model_copy(update={"budget": context.budget.model_copy(update=left)})


def _check_model(kind: Kind, name: str, base_url: str | None, context: Context) -> None:
    """Check that the model can do what is asked, before anything is spent.

    Raises:
        InputError: It cannot.
    """
    provider, shown = name.partition(":")[0], one_line(name, 60)
    is_chat = provider not in (FeedbackRefiner.name, SEQ2SEQ, CAUSAL)
    if base_url is not None and (not is_chat or provider == "local"):
        raise InputError(f"The model '{shown}' uses no server; leave out base_url.")
    ranks = kind == "probe" or context.strategy.ranker in ASKED
    refine = "refine queries; choose another model, or a method such as plain"
    for is_needed, able, what in (
        (context.rounds > 0, FeedbackRefiner.name, refine),
        (ranks, CAUSAL, "rank; choose a language model"),
        (kind == "answer", SEQ2SEQ, "write answers; choose a language model"),
    ):
        if is_needed and not is_chat and provider != able:
            raise InputError(f"The model '{shown}' cannot {what}.")
