"""Fair retrieval for agents of LangChain: one line for all their retriever tools."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack
from uuid import UUID

from langchain.agents.middleware import AgentMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document as Passage
from langchain_core.messages import ToolMessage
from langchain_core.tracers.context import register_configure_hook
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

from fairqr.api import FairSearch, Named, SyncFairSearch
from fairqr.base.extras import library
from fairqr.base.telemetry import span
from fairqr.graph.integrations.evidence import ListEvidence
from fairqr.graph.integrations.logged import (
    RERANKED,
    fair_list_told,
    groups_of,
    heading,
)
from fairqr.graph.integrations.order import (
    Evidence,
    Given,
    Labelled,
    NoLabelsError,
    OrderedList,
    fair_list,
)
from fairqr.graph.search.context import Context, require_context
from fairqr.graph.search.explanation import exposure_lines, passage_lines, quoted
from fairqr.graph.search.result import Place
from fairqr.keywords import SearchKeywords
from fairqr.retrieval.engines.engine import Hits, SearchEngine, shares_above_zero
from fairqr.retrieval.sources.documents import Document, value_at
from fairqr.retrieval.sources.schema import Attribute

if TYPE_CHECKING:
    from fairqr.graph.service.proxy.seen import Log

LOG_BYTES = 100_000_000
"""How large a log may be."""

Answer = ToolMessage | Command[Any]
"""What a tool of an agent gives back."""


class FairRetrieval(AgentMiddleware[Any, Any, Any]):
    """Makes the retriever tools of an agent fair by the groups of a source.

    ``create_agent(model, tools, middleware=[FairRetrieval("notables", attribute="gender")])`` puts
    what the tools found into its fair order, without asking a model. A retriever tool is one whose
    message brings LangChain documents as its artifact, or has the texts of all documents that one
    retriever found for it; what other tools say stays as it is. The agent's model reads the
    passages in their new order and how the exposure of groups changed, in the words of
    :func:`fairqr.search_tool`. The artifact is the list of documents in that order.

    A document's label stands in its metadata, at the attribute's ``field``; where it does not, the
    document's id is looked up in the source. A list without any label keeps its order, with a
    Python warning. Each list has a span ``fairqr.rerank``.

    Args:
        source: Whose groups count: a name, an open engine, or your own :class:`FairSearch`, which
            you close yourself.
        context: What to aim at; k is 10 by default, the number of ranks that count.
        log: A folder in which to record each list, which ``fairqr audit --from-log`` reads. Needs
            the extra ``service``.
        log_words: Record the words of queries too, not only their hashes.
        options: The values of a context, instead of a context. ``attribute`` takes one attribute or
            several.

    Raises:
        InputError: The source has a wrong type, or an option is wrong.
        ConfigError: The log cannot be written.
    """

    def __init__(
        self,
        source: FairSearch | SyncFairSearch | SearchEngine | Named,
        context: Context | None = None,
        *,
        log: Path | str | None = None,
        log_words: bool = False,
        **options: Unpack[SearchKeywords],
    ) -> None:
        if isinstance(source, SyncFairSearch):
            source = source.asynchronous
        if not isinstance(source, FairSearch):
            source = FairSearch(source, "feedback")
        if context is None:
            context = Context.of(**{"k": 10, **options})
        require_context(Context, context)

        self._search = source
        self._context = context
        self._evidence = Evidence(ListEvidence())
        self._log = None if log is None else _open_log(Path(log))
        self._log_words = log_words

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Answer]
    ) -> Answer:
        """Call a tool, and put what it retrieved into its fair order."""
        with _watching() as retrievals:
            answer = handler(request)
        retrieval = _retrieval_of(answer, request, retrievals)
        if retrieval is None:
            return answer
        return self._search._run(self._make_fair(retrieval))

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Answer]]
    ) -> Answer:
        """Call a tool, and put what it retrieved into its fair order."""
        with _watching() as retrievals:
            answer = await handler(request)
        retrieval = _retrieval_of(answer, request, retrievals)
        if retrieval is None:
            return answer
        return await self._make_fair(retrieval)

    async def _make_fair(self, retrieval: _Retrieval) -> ToolMessage:
        """Return the message of a tool with its documents in their fair order."""
        parts = await self._search._ready()
        engine = parts.engine
        query = retrieval.query
        documents = _documents_of(retrieval.passages)
        evidence = self._evidence if query.strip() else None
        try:
            with span("fairqr.rerank") as step:
                order, hits, labelled = await fair_list(
                    engine, self._context, query, documents, evidence
                )
                step.set("fairqr.documents", len(documents))
                step.evaluation("fairness", order.after.fairness)
                step.evaluation("relevance", order.after.relevance)
        except NoLabelsError as error:
            warnings.warn(f"The order of a list was kept: {error}", stacklevel=2)
            return retrieval.message

        if self._log is not None:
            record = _record(engine, self._context, retrieval, order, hits, labelled)
            if self._log_words:
                record["words"] = query
            self._log.add(record)
        passages = [retrieval.passages[position] for position in order.positions]
        content = "\n".join(_lines(engine, retrieval, order, labelled))
        return retrieval.message.model_copy(update={"content": content, "artifact": passages})


class _Retrieval(NamedTuple):
    """What a tool retrieved.

    Attributes:
        message: What it said.
        query: What was searched for; empty if that is not known.
        passages: The documents, best first.
    """

    message: ToolMessage
    query: str
    passages: Sequence[Passage]


class _Retrievals(BaseCallbackHandler):
    """Notes what the retrievers of a tool find.

    Retrievers that others use inside are left out: their lists are not what the tool gets.

    Attributes:
        queries: What was searched for, by run.
        lists: What was found, by run.
    """

    run_inline = True

    def __init__(self) -> None:
        self.queries: dict[UUID, str] = {}
        self.lists: dict[UUID, Sequence[Passage]] = {}
        self._inner: set[UUID] = set()

    def on_retriever_start(
        self,
        serialized: dict[str, Any],
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        **_: Any,
    ) -> None:
        """Note a query, unless another retriever asks it."""
        if parent_run_id in self.queries or parent_run_id in self._inner:
            self._inner.add(run_id)
        else:
            self.queries[run_id] = query

    def on_retriever_end(self, documents: Sequence[Passage], *, run_id: UUID, **_: Any) -> None:
        """Note what was found."""
        if run_id in self.queries:
            self.lists[run_id] = [*documents]


_retrievals: ContextVar[_Retrievals | None] = ContextVar("fairqr_retrievals", default=None)
register_configure_hook(_retrievals, inheritable=True)


@contextmanager
def _watching() -> Iterator[_Retrievals]:
    """Note what is retrieved inside."""
    retrievals = _Retrievals()
    token = _retrievals.set(retrievals)
    try:
        yield retrievals
    finally:
        _retrievals.reset(token)


def _retrieval_of(
    answer: Answer, request: ToolCallRequest, retrievals: _Retrievals
) -> _Retrieval | None:
    """Return what a tool retrieved; None if it is no retriever tool, or found nothing."""
    if not isinstance(answer, ToolMessage):
        return None
    query = _query_of(request, retrievals)
    artifact = answer.artifact
    if isinstance(artifact, list) and artifact:
        are_passages = all(isinstance(entry, Passage) for entry in artifact)
        return _Retrieval(answer, query, artifact) if are_passages else None

    # Without an artifact, the message has to show all that the one retriever found.
    if len(retrievals.lists) != 1:
        return None
    (passages,) = retrievals.lists.values()
    content = str(answer.content)
    shows_all = all(passage.page_content in content for passage in passages)
    return _Retrieval(answer, query, passages) if passages and shows_all else None


def _query_of(request: ToolCallRequest, retrievals: _Retrievals) -> str:
    """Return what was searched for: by the one retriever, or else as the call of the tool says."""
    queries = list(retrievals.queries.values())
    if len(queries) == 1:
        return queries[0]
    return str(request.tool_call["args"].get("query", ""))


def _documents_of(passages: Sequence[Passage]) -> list[Given]:
    """Return documents as a fair list takes them."""
    documents = []
    for position, passage in enumerate(passages):
        document = Given(
            place=position,
            id=_stated_id(passage),
            text=passage.page_content,
            title=_title_of(passage),
            label=partial(_label_of, passage.metadata),
        )
        documents.append(document)
    return documents


def _stated_id(passage: Passage) -> str:
    """Return the id of a document, which its metadata may have instead; empty without one."""
    return str(passage.id or passage.metadata.get("id") or "")


def _title_of(passage: Passage) -> str:
    return str(passage.metadata.get("title") or "")


def _label_of(metadata: Mapping[str, Any], attribute: Attribute) -> object:
    if not attribute.field:
        return None
    return value_at(metadata, attribute.field)


def _lines(
    engine: SearchEngine, retrieval: _Retrieval, order: OrderedList, labelled: Labelled
) -> list[str]:
    """Return what the agent's model is to read."""
    places: list[Place] = []
    documents: list[Document] = []
    for rank, position in enumerate(order.positions, start=1):
        passage = retrieval.passages[position]
        groups = {}
        for name, rows in labelled.members.items():
            attribute = engine.schema.attribute(name)
            groups[name] = shares_above_zero(attribute, rows[position])
        id_ = str(position)
        places.append(Place(rank=rank, id=id_, title=_title_of(passage), groups=groups))
        documents.append(Document(id_, "", passage.page_content))

    passages = quoted(passage_lines(places, documents, whole=True))
    changes = exposure_lines(order.before.exposure, order.after.exposure, order.target)
    return [*passages, *changes, *labelled.notes]


def _record(
    engine: SearchEngine,
    context: Context,
    retrieval: _Retrieval,
    order: OrderedList,
    hits: Hits,
    labelled: Labelled,
) -> dict[str, Any]:
    """Return what a log says of a list, in the form of the proxy's log."""
    size = len(retrieval.passages)
    query = retrieval.query.encode(errors="replace")
    key = hashlib.sha256(query).hexdigest()[:16]
    groups = groups_of(engine.schema, labelled.members)
    ids = [_id_of(passage) for passage in retrieval.passages]
    return {
        **heading(engine.name, key, size, is_fair=True, outcome=RERANKED, share=1.0, search=""),
        **fair_list_told(order, hits, groups, ids),
        "page": size,
        "k": context.k,
        "discount": str(context.discount),
        "exposure": {
            "engine": order.before.exposure,
            "fair": order.after.exposure,
            "target": order.target,
            # Users see the fair list.
            "shown": order.after.exposure,
        },
    }


def _id_of(passage: Passage) -> str:
    """Return a document's id, or else a hash of its text."""
    text = passage.page_content.encode(errors="replace")
    return _stated_id(passage) or hashlib.sha256(text).hexdigest()[:32]


def _open_log(folder: Path) -> Log:
    """Open a log as a proxy does.

    Raises:
        InputError: The extra ``service`` is not installed.
    """
    prometheus = library("prometheus_client", "The log of lists", "service")

    from fairqr.graph.service.proxy.seen import Log

    registry = prometheus.CollectorRegistry()
    lost_records = prometheus.Counter(
        "log_lost", "Records not written.", ["reason"], registry=registry
    )
    return Log(folder, LOG_BYTES, lost_records)
