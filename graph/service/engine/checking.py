"""Checks of requests: their types, the caps, and what the service offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from fairqr.agents.attribution.attributor import AttributorName
from fairqr.agents.models.opening import CAUSAL, SEQ2SEQ
from fairqr.agents.refiner import FeedbackRefiner
from fairqr.base.errors import InputError, QueryError, first_problem, one_line
from fairqr.base.settings import DEFAULT_POOL
from fairqr.graph.answer.context import AnswerContext, answer_context
from fairqr.graph.probe.context import probe_context
from fairqr.graph.search.context import Context, make_context
from fairqr.graph.search.rankers import ASKED
from fairqr.graph.service.configuration import Caps
from fairqr.graph.service.engine.bounds import bounded, check_bound, check_text, with_answers
from fairqr.graph.service.engine.offers import NOTHING, Offers
from fairqr.graph.service.engine.requests import REQUESTS, RunRequest
from fairqr.graph.service.records import Kind

_OF_THE_SERVICE = frozenset(
    ("corpus", "retriever", "model", "base_url", "keep", "query", "question", "attributor")
)


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request.

    Attributes:
        kind: ``search``, ``answer`` or ``probe``.
        query: The query or the question.
        corpus: The name of a source, an index or a built-in corpus.
        retriever: One of :data:`fairqr.retrieval.encoders.opening.RETRIEVERS`.
        model: The name of the model.
        base_url: The configured address that the request names, if any.
        attributor: What judges answers; optional.
        context: The context of the graph.
        fits_pool: Whether to lower ``k`` to the size of a smaller corpus.
        body: The request with all defaults filled in. Checking it again gives the same request.
    """

    kind: Kind
    query: str
    corpus: str
    retriever: str
    model: str
    base_url: str | None
    attributor: str | None
    context: Context
    fits_pool: bool
    body: dict[str, Any]


def parsed(kind: Kind, body: Mapping[str, Any]) -> RunRequest:
    """Parse the body of a request.

    Raises:
        InputError: A parameter is wrong; the message names it.
    """
    try:
        return REQUESTS[kind].model_validate(body)
    except ValidationError as error:
        where, reason = first_problem(error)
        raise InputError(f"The parameter '{where}' is wrong: {reason}.") from None


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
    values = bounded(kind, asked, caps)
    query = values["question" if kind == "answer" else "query"]
    if not query.strip():
        raise QueryError("The query is empty; write what to search for.")
    check_text(query, caps)
    values["corpus"] = offers.corpus(values["corpus"])
    values["model"], entry = offers.model(values["model"])
    base_url = offers.base_url(values["base_url"], entry)
    attributor = None
    if kind == "answer":
        attributor = offers.attributor(values["attributor"])
        values["attributor"] = attributor or NOTHING
    context = _within(_context(kind, values), caps)
    offers.check_prompts(context.prompts.items())
    strategy = context.strategy
    offers.check_steps(strategy.ranker, context.ranking.weights, strategy.final_step)
    if "weights" in context.options:
        raise InputError("A request cannot name a file of weights; leave it out of 'options'.")
    if isinstance(context, AnswerContext):
        judged = attributor is not None and AttributorName.parse(attributor).kind == "llm"
        context = with_answers(context, judged, offers.answer_tokens(context.prompts), caps)
    _check_model(kind, values["model"], base_url, context)
    return Request(
        kind=kind,
        query=query,
        corpus=values["corpus"],
        retriever=strategy.searched_by(values["retriever"]),
        model=values["model"],
        base_url=base_url,
        attributor=attributor,
        context=context,
        fits_pool=kind == "answer" and values["k"] is None,
        body=values,
    )


def _context(kind: Kind, values: Mapping[str, Any]) -> Context:
    """Return the context, as the same call of the Python API makes it."""
    options = {name: value for name, value in values.items() if name not in _OF_THE_SERVICE}
    if kind == "probe":
        return probe_context(**options)
    options["attribute"] = options.pop("attributes", None) or None
    if kind == "search":
        return make_context(**options)
    if options["k"] is None:
        options["k"] = max(DEFAULT_POOL, options["documents"])
    return answer_context(**options)


def _within(context: Context, caps: Caps) -> Context:
    """Lower the method's own depth to the cap.

    Raises:
        CapError: The cap is below the number of documents to show.
    """
    strategy = context.strategy
    if (strategy.depth or 0) <= caps.depth:
        return context
    check_bound("k", context.k, "depth", caps.depth)
    ranking = context.ranking
    if strategy.ranker:
        ranking = ranking.model_copy(update={"depth": min(strategy.reads, caps.depth)})
    return context.model_copy(update={"depth": caps.depth, "ranking": ranking})


def _check_model(kind: Kind, name: str, base_url: str | None, context: Context) -> None:
    """Check that the model can do what is asked, before anything is spent.

    Raises:
        InputError: It cannot.
    """
    provider = name.partition(":")[0]
    writes = provider not in (FeedbackRefiner.name, SEQ2SEQ, CAUSAL)
    if base_url is not None and (not writes or provider == "local"):
        raise InputError(f"The model '{name}' uses no server; leave out base_url.")
    if context.rounds and not (writes or provider == FeedbackRefiner.name):
        raise InputError(
            f"The model '{one_line(name, 60)}' cannot refine queries; choose another model, or a "
            "method that does not refine, such as plain."
        )
    asks = kind == "probe" or context.strategy.ranker in ASKED
    if asks and not (writes or provider == CAUSAL):
        raise InputError(f"The model '{one_line(name, 60)}' cannot rank; choose a language model.")
    if kind == "answer" and not (writes or provider == SEQ2SEQ):
        raise InputError(
            f"The model '{one_line(name, 60)}' cannot write answers; choose a language model."
        )
