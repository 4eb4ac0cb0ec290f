"""Ranks by any endpoint that re-ranks: the format of Jina, Cohere and vLLM, and that of TEI.

The request has ``query``, ``documents`` (texts), ``top_n`` and perhaps ``model``, and the response
``results`` with ``index`` and ``relevance_score``. Text Embeddings Inference calls the documents
``texts``, and answers with a bare list of ``index`` and ``score``. We ask in the first form, and in
the second one if the server says that ``texts`` are missing. Our own service answers the first.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx

from fairqr.agents.models.replies import Status, no_answer_within
from fairqr.agents.ranking.rankers import Cost, ItemRanking, RankerOptions, RankItem
from fairqr.base.errors import InputError, one_line
from fairqr.base.loops import PerLoop
from fairqr.base.retries import with_retries
from fairqr.base.secrets import without_secrets
from fairqr.base.settings import DEFAULT_TIMEOUT, is_web_address
from fairqr.retrieval.sources.credentials import credentials_at

MOST_BYTES = 10_000_000
"""The largest response that we read."""

_ADDRESS = re.compile(r"(?:(?P<model>.*)@)?(?P<url>https?://[^@\s]+)")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint as a user names it: ``URL``, or ``MODEL@URL`` for a server of several models.

    Attributes:
        url: The whole address, such as ``http://127.0.0.1:8000/v1/rerank``.
        model: What the server calls the model; empty if it has one only.
    """

    url: str
    model: str = ""

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read an endpoint.

        Raises:
            InputError: The text has no address.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or not is_web_address(match["url"]):
            raise InputError(
                f"'{one_line(without_secrets(text), 100)}' is no endpoint that re-ranks; write its "
                "whole address, such as rerank:http://127.0.0.1:8000/v1/rerank, or "
                "rerank:MODEL@ADDRESS."
            )
        return cls(match["url"], match["model"] or "")


class EndpointError(Exception):
    """There is no ranking; the message says what the endpoint did.

    Args:
        status: How the question ended.
        message: The end of a sentence that begins with the endpoint.
    """

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status


class EndpointRanker:
    """Orders items as an endpoint does; see the module.

    A word for a persona stands before the query, as for monoT5. Keys come from the entry
    ``[credentials.NAME]`` of the settings file whose ``urls`` name this server, if there is one.

    Args:
        options: ``weights`` names the endpoint; the others say what is shown of an item.

    Attributes:
        name: ``rerank(``, the model if one is named, and the address without parameters.

    Raises:
        InputError: The endpoint is no address.
    """

    def __init__(self, options: RankerOptions) -> None:
        self._options = options
        self._endpoint = Endpoint.parse(options.weights or "")
        self._takes_texts = False
        self._clients: PerLoop[httpx.AsyncClient] = PerLoop()
        address = self._endpoint.url.partition("?")[0]
        model = f"{self._endpoint.model} at " if self._endpoint.model else ""
        self.name = f"rerank({model}{address})"

    async def start(self) -> None:
        """Do nothing: the server shows with the first list whether it is there."""

    def cost(self, query: str, items: Sequence[RankItem], group: str = "") -> Cost:
        """Return a cost of 0, since no language model is asked."""
        return Cost()

    async def rank(
        self, query: str, items: Sequence[RankItem], group: str = "", deadline: float | None = None
    ) -> ItemRanking:
        """Rank the items; see :meth:`fairqr.agents.ranking.rankers.ItemRanker.rank`.

        All items are sent at once, since some servers judge a list as a whole. Items that the
        response leaves out go to the end in their order, and are counted as repairs; places that
        no item has, or that come twice, are dropped and counted. Without a usable response the
        order is unchanged, and the list counts as one failed question.

        Raises:
            ConfigError: The credentials of this server are wrong.
        """
        seconds = DEFAULT_TIMEOUT if deadline is None else deadline
        query_text = f"{group} {query}" if group else query
        texts = [_sendable(item, self._options) for item in items]
        try:
            async with asyncio.timeout(seconds):
                answer = await self._ask(query_text, texts)
            return replace(_ranking(answer, len(texts)), warnings=_warnings(answer))
        except TimeoutError:
            return _failed("timeout", no_answer_within(self.name, seconds), len(texts))
        except httpx.HTTPError as error:
            # Its text may quote the address with its parameters.
            message = f"The endpoint {self.name} did not answer ({type(error).__name__})."
            return _failed("unavailable", message, len(texts))
        except EndpointError as error:
            return _failed(error.status, f"The endpoint {self.name} {error}.", len(texts))

    async def _ask(self, query: str, texts: Sequence[str]) -> Any:
        """Return what the server answers, in the form that it understands."""
        response = await with_retries(partial(self._post, self._body(query, texts)))
        is_refused = response.status_code in (400, 422)
        if is_refused and not self._takes_texts and "texts" in _excerpt(response):
            self._takes_texts = True
            response = await with_retries(partial(self._post, self._body(query, texts)))
        if response.status_code in (401, 403):
            raise EndpointError(
                "denied",
                f"refuses access ({response.status_code}); add an entry [credentials.NAME] with "
                "this address and its key to the settings file",
            )
        if response.status_code != 200:
            problem = f"answered {response.status_code} ({_excerpt(response)})"
            raise EndpointError("invalid_request", problem)
        try:
            return json.loads(response.content)
        except (ValueError, RecursionError):
            raise EndpointError("parse_error", "answered no JSON") from None

    def _body(self, query: str, texts: Sequence[str]) -> dict[str, Any]:
        """Return a request in the form that the server understands, as far as we know."""
        if self._takes_texts:
            return {"query": query, "texts": list(texts), "truncate": True}
        body = {"query": query, "documents": list(texts), "top_n": len(texts)}
        if self._endpoint.model:
            return {"model": self._endpoint.model, **body}
        return body

    async def _post(self, body: dict[str, Any]) -> httpx.Response:
        """Send a request; raises an error of httpx where another attempt may help."""
        response = await self._client().post(self._endpoint.url, json=body)
        if response.status_code in (408, 429) or response.status_code >= 500:
            response.raise_for_status()
        if len(response.content) > MOST_BYTES:
            raise EndpointError("parse_error", f"sent more than {MOST_BYTES:,} bytes")
        return response

    def _client(self) -> httpx.AsyncClient:
        """Return the client of the running event loop."""
        client = self._clients.get()
        if client is not None:
            return client
        credentials = credentials_at(self._endpoint.url)
        client = httpx.AsyncClient(
            headers={"User-Agent": "fairqr", **credentials.request_headers()},
            follow_redirects=False,
            timeout=None,  # noqa: S113 - the whole request has a limit
            verify=credentials.trusted() or True,
        )
        return self._clients.setdefault(client)


def _excerpt(response: httpx.Response) -> str:
    """Return the beginning of what a server says."""
    return one_line(response.text[:2000], 200)


def _sendable(item: RankItem, options: RankerOptions) -> str:
    """Return what is shown of an item, without half surrogate pairs, which no JSON can carry."""
    text = item.shown(options.shown)[: options.length]
    return text.encode("utf-8", "replace").decode()


def _failed(status: Status, message: str, n: int) -> ItemRanking:
    """Return the unchanged order of ``n`` items."""
    return ItemRanking(tuple(range(n)), 1, {status: 1}, warnings=(message,), message=message)


def _warnings(answer: Any) -> tuple[str, ...]:
    """Return what the server warns of, as our own service does of a list without labels."""
    warnings = answer.get("warnings") if isinstance(answer, dict) else None
    if not isinstance(warnings, list):
        return ()
    return tuple(one_line(warning, 300) for warning in warnings)


def _ranking(answer: Any, n: int) -> ItemRanking:
    """Return the ranking in a response to a list of ``n`` items.

    Raises:
        EndpointError: It has no list of results, or one has no whole index or no finite score.
    """
    results = answer.get("results") if isinstance(answer, dict) else answer
    if not isinstance(results, list) or not results:
        raise EndpointError("parse_error", "answered without a list of results")
    scores: dict[int, float] = {}
    repairs = {"missing": 0, "duplicate": 0, "stranger": 0}
    for result in results:
        index, score = _result(result)
        if not 0 <= index < n:
            repairs["stranger"] += 1
        elif index in scores:
            repairs["duplicate"] += 1
        else:
            scores[index] = score
    # The scores decide, not the order of the response; of equal ones the earlier result is first.
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    missing = [position for position in range(n) if position not in scores]
    repairs["missing"] = len(missing)
    return ItemRanking(
        (*ranked, *missing),
        1,
        repairs={kind: count for kind, count in repairs.items() if count},
        scores=None if missing else tuple(scores[position] for position in range(n)),
    )


def _result(result: Any) -> tuple[int, float]:
    """Return the index and the score of a result."""
    fields: dict[str, Any] = result if isinstance(result, dict) else {}
    index: Any = fields.get("index")
    score: Any = fields.get("relevance_score", fields.get("score"))
    is_whole = isinstance(index, int) and not isinstance(index, bool)
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    if is_whole and is_number and math.isfinite(score):
        return index, float(score)
    raise EndpointError("parse_error", "answered a result without an index or a score")
