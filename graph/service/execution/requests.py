"""The requests of the service: the parameters of the Python API, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from fairqr.base.errors import one_line, parameter_errors
from fairqr.graph.answer.context import AnswerSettings
from fairqr.graph.probe.context import ProbeSettings
from fairqr.graph.search.context import Frozen, Method, SearchParameters
from fairqr.graph.service.records import Kind
from fairqr.retrieval.encoders.opening import RetrieverName
from fairqr.retrieval.fairness.target import Target

NAMED = 80
"""Characters of the first query in the name of an audit."""


def or_text(from_text: Callable[[str], object], usual_type: Any) -> BeforeValidator:
    """Return a validator that also takes a text, and makes the usual type of it."""

    def validate(value: object) -> object:
        return from_text(value) if isinstance(value, str) else value

    return BeforeValidator(validate, json_schema_input_type=str | usual_type)


_Text = Annotated[str, Field(max_length=2000)]
_Texts = Annotated[list[_Text], Field(max_length=100, fail_fast=True)]
"""Some texts; an error names only the first wrong one."""

_Attributes = Annotated[_Texts, or_text(lambda text: [text], _Texts)]
_Target = Annotated[
    _Text | _Texts | Target | None,
    Field(examples=["retrieved:0.5,population:0.5", ["gender=female:0.5,male:0.5"]]),
]
_Seed = Annotated[int, Field(ge=0, lt=2**63)]


def example(**values: Any) -> Any:
    """Return the configuration that gives the schema of a model this example."""
    return {"json_schema_extra": {"example": values}}


def _description(parameter: str) -> str | None:
    """Return the description of a search's parameter that has another form in JSON."""
    return SearchParameters.model_fields[parameter].description


class RunRequest(SearchParameters):
    """The parameters of all requests: those of a search, in the forms of JSON, and the service's.

    They are checked together when they become the context of a run.
    """

    attributes: _Attributes = Field(  # type: ignore[assignment]
        [], examples=[["gender"], "gender"], description=_description("attributes")
    )
    target: _Target = Field(  # type: ignore[assignment]
        None, description=_description("target")
    )
    discount: str = Field(  # type: ignore[assignment]
        "log2", description=_description("discount")
    )
    seed: _Seed | None = Field(None, description=_description("seed"))
    corpus: str | None = Field(
        None,
        examples=["notables"],
        description="What to search: a name that `GET /v1/indexes` lists; defaults to the first.",
    )
    retriever: RetrieverName = Field(
        "auto",
        description=(
            "How documents are found: by words (`bm25`), by vectors (`dense`), or by both "
            "(`hybrid`), which also estimates relevance. `auto` is `hybrid` for an index if the "
            "service has the encoder, and otherwise the engine's own ranking."
        ),
    )
    model: str | None = Field(
        None,
        examples=["feedback"],
        description=(
            "A model that `GET /v1/models` lists; defaults to the first. `feedback` uses no "
            "language model."
        ),
    )
    keep: bool = Field(
        False,
        description=(
            "Continue without the client and after a restart of the service, and keep the result. "
            "Otherwise the run is cancelled if its client disconnects."
        ),
    )


class SearchRequest(RunRequest):
    """A search, with the parameters and defaults of the command `fairqr search`."""

    model_config = example(query="physicist", attributes=["gender"], k=5, model="feedback")

    query: str = Field(min_length=1, examples=["physicist"], description="What to search for.")


class AnswerRequest(AnswerSettings, RunRequest):
    """A question, with the parameters of `FairSearch.answer`.

    `k` is the number of documents to sample from, and `documents` how many of them are read. The
    command calls these `--pool` and `-k`.
    """

    model_config = example(question="Which composer was born in Vienna?", samples=2, documents=3)

    question: str = Field(
        min_length=1, examples=["Which composer was born in Vienna?"], description="What to answer."
    )
    k: int | None = Field(  # type: ignore[assignment]
        None,
        ge=1,
        le=10_000,
        description=(
            "How many documents to sample from. By default 20, or `documents` if that is more; at "
            "most the size of the corpus."
        ),
    )
    method: Method = Field("baseline", description="How to rank, as in a search.")
    attributor: str | None = Field(
        None,
        examples=["overlap"],
        description=(
            "What judges which documents an answer used: a name that `GET /v1/models` lists, or "
            "`none`; defaults to the first."
        ),
    )


class ProbeRequest(ProbeSettings, RunRequest):
    """A probe of the model that ranks, with the parameters of `FairSearch.probe`.

    `depth` is how many of the `k` documents take part, and `seed` is the seed of the probe.
    """

    model_config = example(
        query="physicist", attribute="gender", protected="female", kinds=["pairwise"], pairs=2, k=10
    )

    query: str = Field(min_length=1, examples=["physicist"], description="What to search for.")
    k: int = Field(
        20,
        ge=1,
        le=10_000,
        description=(
            "How many results to find and to probe; with depth, only the first of them are probed."
        ),
    )
    method: Method = Field("baseline", description="How to rank, as in a search.")
    depth: int | None = Field(
        None,
        ge=2,
        le=1000,
        description="How many of the best documents of the result take part; by default all.",
    )


REQUESTS: dict[Kind, type[RunRequest]] = {
    "search": SearchRequest,
    "answer": AnswerRequest,
    "probe": ProbeRequest,
}


class BackgroundSearch(Frozen):
    """A search in the background."""

    kind: Literal["search"]
    request: SearchRequest


class BackgroundAnswer(Frozen):
    """An answer in the background."""

    kind: Literal["answer"]
    request: AnswerRequest


class BackgroundProbe(Frozen):
    """A probe in the background."""

    kind: Literal["probe"]
    request: ProbeRequest


BackgroundRun = Annotated[
    BackgroundSearch | BackgroundAnswer | BackgroundProbe, Field(discriminator="kind")
]


class AuditedQuery(Frozen):
    """A query of an audit."""

    query: str
    weight: float = Field(
        1.0, ge=0, le=1e9, allow_inf_nan=False, description="How often it was asked."
    )


_Query = Annotated[AuditedQuery, or_text(lambda text: {"query": text}, AuditedQuery)]


class AuditRequest(Frozen):
    """An audit of a source by a list of queries."""

    model_config = example(
        queries=["physicist", {"query": "composer", "weight": 12}], attributes=["gender"], k=10
    )

    corpus: str | None = Field(
        None, description="What to audit, as `GET /v1/indexes` lists it; defaults to the first."
    )
    retriever: RetrieverName = Field(
        "auto", examples=["bm25"], description="How documents are found; as in a search."
    )
    queries: list[_Query] = Field(
        min_length=1,
        fail_fast=True,
        description="What people search for. A text counts once; an object may give its weight.",
    )
    attributes: _Texts = Field(
        [], description="The attributes to measure; by default all attributes of the source."
    )
    intersections: bool = Field(
        True, description="Also measure the combinations of every two attributes."
    )
    k: int = Field(10, ge=1, le=10_000, description="How many results count as shown.")
    depth: int = Field(
        100,
        ge=2,
        le=10_000,
        description=(
            "How many results to ask for. Those after `k` count as candidates that were not shown."
        ),
    )
    target: _Target = Field(
        None,
        examples=["relevance:0.5,population:0.5"],
        description=(
            "The exposure that each group should get: a mixture of `relevance`, `population`, "
            "`uniform` and `corpus`, or shares of one attribute. Defaults to `relevance:1`."
        ),
    )
    discount: str = Field(
        "log2",
        description=(
            "Attention by rank: log2, trec, rbp(p), top_k(k), inverse_log, or weights(1, 0.6, …), "
            "those of the first ranks."
        ),
    )
    clicks: list[dict[str, Any]] = Field(
        [],
        fail_fast=True,
        description=(
            "What users were shown and clicked: searches and events as User Behavior Insights "
            "records them. The attention by rank that they show takes the place of `discount`."
        ),
    )
    seed: _Seed = Field(0, description="Fixes all random choices.")

    @property
    def name(self) -> str:
        """The name of the audit, for lists of runs."""
        first_query = one_line(self.queries[0].query, NAMED)
        other_queries = len(self.queries) - 1
        return f"{first_query} and {other_queries:,} more" if other_queries else first_query

    @property
    def options(self) -> dict[str, Any]:
        """What to measure, as an :class:`Auditor` takes it."""
        return self.model_dump(
            exclude={"corpus", "retriever", "queries", "clicks"}, exclude_none=True
        )


def parsed(kind: Kind, body: Mapping[str, Any]) -> RunRequest:
    """Parse the body of a request.

    Raises:
        InputError: A parameter is wrong; the message names it.
    """
    with parameter_errors():
        return REQUESTS[kind].model_validate(body)
