"""The requests of the service: the parameters of the Python API, as JSON."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from fairqr.graph.answer.context import AnswerSettings
from fairqr.graph.probe.context import ProbeSettings
from fairqr.graph.search.context import Method, SearchParameters
from fairqr.graph.service.records import Kind
from fairqr.retrieval.encoders.opening import RetrieverName
from fairqr.retrieval.fairness.target import Target

Texts = Annotated[
    list[Annotated[str, StringConstraints(max_length=2000)]],
    Field(max_length=100, fail_fast=True),
]
"""Some texts, of which only the first wrong one is told."""

TargetOfRequest = Annotated[
    Annotated[str, StringConstraints(max_length=2000)] | Texts | Target | None,
    Field(examples=["retrieved:0.5,population:0.5", ["gender=female:0.5,male:0.5"]]),
]
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class RunRequest(SearchParameters):
    """The parameters of all requests: those of a search, in the forms of JSON, and the service's.

    They are checked together when they become the context of a run.

    Attributes:
        corpus: What to search: a name that ``GET /v1/indexes`` lists; defaults to the first.
        retriever: How documents are found: by words (``bm25``), by vectors (``dense``), or by both
            (``hybrid``), which also estimates relevance. ``auto`` is ``hybrid`` for an index if the
            service has the encoder, and otherwise the engine's own ranking.
        model: A model that ``GET /v1/models`` lists; defaults to the first. ``feedback`` uses no
            language model.
        base_url: The address of the model's server; the service must be configured with it.
        keep: Continue without the client and after a restart of the service, and keep the result.
            Otherwise the run is cancelled if its client disconnects.
    """

    attributes: str | Texts = Field([], examples=[["gender"], "gender"])  # type: ignore[assignment]
    target: TargetOfRequest = None  # type: ignore[assignment]
    discount: str = "log2"  # type: ignore[assignment]
    seed: Seed | None = None
    corpus: str | None = Field(None, examples=["notables"])
    retriever: RetrieverName = "auto"
    model: str | None = Field(None, examples=["feedback"])
    base_url: str | None = None
    keep: bool = False


class SearchRequest(RunRequest):
    """A search, with the parameters and defaults of the command `fairqr search`.

    Attributes:
        query: What to search for.
    """

    query: str = Field(min_length=1, examples=["physicist"])

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "query": "physicist",
                "attributes": ["gender"],
                "k": 5,
                "model": "feedback",
            }
        }
    )


class AnswerRequest(AnswerSettings, RunRequest):
    """A question, with the parameters of `FairSearch.answer`.

    `k` is the number of documents to sample from, and `documents` how many of them are read. The
    command calls these `--pool` and `-k`.

    Attributes:
        question: What to answer.
        k: How many documents to sample from. By default 20, or ``documents`` if that is more; at
            most the size of the corpus.
        method: What ranks; as of a search.
        attributor: What judges which documents an answer used: a name that ``GET /v1/models``
            lists, or ``none``; defaults to the first.
    """

    question: str = Field(min_length=1, examples=["Which composer was born in Vienna?"])
    k: int | None = Field(None, ge=1, le=10_000)  # type: ignore[assignment]
    method: Method = "plain"
    attributor: str | None = Field(None, examples=["overlap"])

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "question": "Which composer was born in Vienna?",
                "samples": 2,
                "documents": 3,
            }
        }
    )


class ProbeRequest(ProbeSettings, RunRequest):
    """A probe of the model that ranks, with the parameters of `FairSearch.probe`.

    `depth` is how many of the `k` documents take part, and `seed` is the seed of the probe.

    Attributes:
        query: What to search for.
        method: What ranks; as of a search.
        depth: How many of the best documents of the result take part; by default all.
    """

    query: str = Field(min_length=1, examples=["physicist"])
    method: Method = "plain"
    depth: int | None = Field(None, ge=2, le=1000)

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "query": "physicist",
                "attribute": "gender",
                "protected": "female",
                "kinds": ["pairwise"],
                "pairs": 2,
                "k": 10,
            }
        }
    )


REQUESTS: dict[Kind, type[RunRequest]] = {
    "search": SearchRequest,
    "answer": AnswerRequest,
    "probe": ProbeRequest,
}


class BackgroundSearch(BaseModel):
    """A search in the background."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["search"]
    request: SearchRequest


class BackgroundAnswer(BaseModel):
    """An answer in the background."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["answer"]
    request: AnswerRequest


class BackgroundProbe(BaseModel):
    """A probe in the background."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["probe"]
    request: ProbeRequest


BackgroundRun = Annotated[
    BackgroundSearch | BackgroundAnswer | BackgroundProbe, Field(discriminator="kind")
]
