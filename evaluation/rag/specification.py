"""What a Fair RAG experiment is: a file that names collections, retrievers, generators and α."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict, field_validator, model_validator

from fairqr.base.errors import one_line

__all__ = ["NO_ATTRIBUTOR", "FairRagExperiment", "Form"]

Form = Literal["logits", "worths"]
"""How scores become a Plackett–Luce distribution; see :mod:`fairqr.retrieval.sampling`."""

NO_ATTRIBUTOR = "none"
"""Attribution is left out."""

# A switch such as "true" is no number.
_Count = Annotated[int, Field(ge=1, strict=True)]
_Seed = Annotated[int, Field(ge=0, strict=True)]
_Alpha = Annotated[float, Strict()]

_RETRIEVER = re.compile(r"bm25|(?:splade|contriever|dense)(?::.+)?")


class FairRagExperiment(BaseModel):
    """Retrievers, generators and stochastic policies, compared on the queries of collections.

    Attributes:
        kind: Tells it from the experiments with searches.
        title: Of the report.
        about: What is asked, for the report.
        collections: Names or paths, as
            :func:`fairqr.evaluation.rag.finding.find_rag_collection` takes them.
        task: Of the collections, where their files do not say it, e.g. ``LaMP-5``.
        queries: At most so many of the first queries of each collection, before those without
            enough useful documents are dropped.
        pool: At most so many of the first documents of each query's pool; all where None.
        retrievers: ``bm25``, ``splade``, ``contriever`` or ``dense``, the last three with the name
            of a model after a colon if it is not the default one.
        generators: As :func:`fairqr.agents.generators.open_generator` takes them.
        attributor: As :func:`fairqr.agents.attribution.open.open_attributor` takes it, or ``none``.
        hypothesis: Whether the attributor judges the answer as it is (``raw``, as the paper) or
            the sentence that the task makes of it (``task``).
        alphas: The exponents of the stochastic policies; 0 is uniform, and the larger the nearer
            to the deterministic ranking.
        form: Of the distribution.
        samples: How many rankings are drawn from each policy.
        generated: From how many of them, the first, answers are generated; all where None. Exposure
            is measured on all samples, what needs answers on these.
        k: How many documents the generator reads.
        seeds: Of the sampling; each repeats it.
        prompts: The version of a prompt by its id, where it is not the default one; those that the
            collections do not ask with play no part.
        min_useful: Queries with fewer useful documents are dropped.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["fair_rag"]
    title: str
    about: str = ""
    collections: tuple[str, ...] = ()
    task: str | None = None
    queries: _Count = 1000
    pool: _Count | None = None
    retrievers: tuple[str, ...] = ("bm25",)
    generators: tuple[str, ...]
    attributor: str = "overlap"
    hypothesis: Literal["raw", "task"] = "raw"
    alphas: tuple[_Alpha, ...] = (1.0, 2.0, 4.0, 8.0)
    form: Form = "logits"
    samples: _Count = 100
    generated: _Count | None = None
    k: _Count = 5
    seeds: tuple[_Seed, ...] = (0,)
    prompts: dict[str, str] = {}
    min_useful: _Count = 2

    @field_validator("retrievers")
    @classmethod
    def _are_retrievers(cls, retrievers: tuple[str, ...]) -> tuple[str, ...]:
        for name in retrievers:
            if not _RETRIEVER.fullmatch(name):
                raise ValueError(
                    f"there is no retriever '{one_line(name)}'; write bm25, splade, contriever or "
                    "dense, the last three perhaps with :MODEL"
                )
        return retrievers

    @field_validator("alphas")
    @classmethod
    def _are_exponents(cls, alphas: tuple[float, ...]) -> tuple[float, ...]:
        for alpha in alphas:
            if not (math.isfinite(alpha) and alpha >= 0):
                raise ValueError(f"α is {alpha:g}; give numbers that are 0 or more and finite")
        return alphas

    @field_validator("generators", "collections", "attributor")
    @classmethod
    def _are_plain(cls, names: tuple[str, ...] | str) -> tuple[str, ...] | str:
        for name in (names,) if isinstance(names, str) else names:
            if not name.strip() or not name.isprintable():
                raise ValueError(f"'{one_line(name)}' is no name")
        return names

    @model_validator(mode="after")
    def _is_whole(self) -> FairRagExperiment:
        listed: dict[str, tuple[object, ...]] = {
            "retrievers": self.retrievers,
            "generators": self.generators,
            "alphas": self.alphas,
            "seeds": self.seeds,
        }
        for name, values in listed.items():
            if not values:
                raise ValueError(f"the list of {name} is empty; name at least one")
        for name, values in {**listed, "collections": self.collections}.items():
            if len(set(values)) < len(values):
                raise ValueError(f"one of the {name} is named twice; name each once")
        if self.generated is not None and self.generated > self.samples:
            raise ValueError(
                f"{self.generated} of {self.samples} samples cannot be generated from; "
                "lower 'generated', or raise 'samples'"
            )
        return self

    @property
    def answered(self) -> int:
        """From how many samples of each policy answers are generated."""
        return self.samples if self.generated is None else self.generated
