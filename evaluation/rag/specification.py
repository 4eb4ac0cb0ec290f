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
    """Retrievers, generators and stochastic policies, compared on the queries of collections."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["fair_rag"]
    title: str = Field(description="The title of the report.")
    about: str = Field("", description="What the experiment asks, for the report.")
    collections: tuple[str, ...] = Field(
        (), description="The collections: names, folders of LaMP, or JSON Lines files."
    )
    task: str | None = Field(
        None,
        description="The task of the collections, such as LaMP-5, if their files do not name it.",
    )
    queries: _Count = Field(
        1000,
        description="Use only the first so many queries of each collection, before those with "
        "too few useful documents are dropped.",
    )
    pool: _Count | None = Field(
        None,
        description="Use only the first so many documents of each query's pool; all by default.",
    )
    retrievers: tuple[str, ...] = Field(
        ("bm25",),
        description="What ranks: bm25, splade, contriever or dense; the last three also with "
        ":MODEL.",
    )
    generators: tuple[str, ...] = Field(
        description="What answers, such as openai:gpt-4o or seq2seq:google/flan-t5-small."
    )
    attributor: str = Field(
        "overlap", description="What judges which documents an answer used; none leaves that out."
    )
    hypothesis: Literal["raw", "task"] = Field(
        "raw",
        description="What the attributor judges: the answer as it is (raw, as in the paper), or "
        "the sentence that the task makes of it (task).",
    )
    alphas: tuple[_Alpha, ...] = Field(
        (1.0, 2.0, 4.0, 8.0),
        description="The exponents of the stochastic policies: 0 draws uniformly, and a larger "
        "one comes closer to the deterministic ranking.",
    )
    form: Form = Field(
        "logits", description="How scores become a Plackett–Luce distribution: logits or worths."
    )
    samples: _Count = Field(100, description="How many rankings to draw from each policy.")
    generated: _Count | None = Field(
        None,
        description="Generate answers from only the first so many samples; from all by default. "
        "Exposure is measured on all samples.",
    )
    k: _Count = Field(5, description="How many documents the generator reads.")
    seeds: tuple[_Seed, ...] = Field(
        (0,), description="The seeds of the sampling; each repeats it."
    )
    prompts: dict[str, str] = Field(
        {}, description="The version of a prompt, by its name, such as lamp5=v2."
    )
    min_useful: _Count = Field(2, description="Drop queries with fewer useful documents.")

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
