"""What a run that probes a model is asked to do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from fairqr.agents.ranking.rankers import Persona, Shown
from fairqr.graph.search.context import Context, Method, WindowSettings, WrittenTarget
from fairqr.retrieval.fairness.dimension import factors_of
from fairqr.retrieval.fairness.target import Target

ProbeKind = Literal["pairwise", "listwise"]


class ProbeSettings(WindowSettings):
    """How the model is probed on the documents of a result.

    All of these documents count as equally relevant, because nobody has judged them for the query.
    """

    attribute: str = Field(description="The attribute to probe, such as gender.")
    protected: str = Field(
        "female", description="The groups to protect: female, not Europe, or 'female vs male'."
    )
    words: tuple[str, str] | None = Field(
        None,
        description=(
            "The words for the protected side and the other side in prompts, such as women,men; by "
            "default the names of their groups."
        ),
    )
    kinds: tuple[ProbeKind, ...] = Field(
        ("pairwise", "listwise"),
        description=(
            "What to ask: which of two documents comes first, in both orders (pairwise), and how "
            "to order all of them (listwise)."
        ),
    )
    depth: int | None = Field(
        None, ge=2, le=1000, description="How many of the best results take part; by default all."
    )
    pairs: int = Field(
        50,
        ge=1,
        le=1000,
        description="The most pairs to ask about; each document is in at most one pair.",
    )
    persona: Persona = Field(
        "neutral",
        description="For whom the model compares pairs: a neutral person, or a person of one side.",
    )
    personas: tuple[Persona, ...] = Field(
        ("neutral", "unprotected", "protected"), description="For whom the model orders lists."
    )
    by: Literal["probabilities", "reply"] = Field(
        "probabilities",
        description=(
            "How a pair is decided: by the probabilities of the two labels, if the model gives "
            "them, or by the reply it writes."
        ),
    )
    shown: Shown = Field(
        "title", description="What the model reads of a document: title, text or title_text."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="The seed of the pairs, of the initial order of lists, and of intervals."
    )

    @field_validator("kinds", "personas")
    @classmethod
    def _are_some_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names or len(set(names)) < len(names):
            raise ValueError("name at least one, and each once")
        return names


class ProbeContext(Context):
    """What a run that probes is asked to do: the search, and the questions about its ranking.

    The method is `baseline` by default, and exposure is measured by the attribute of the probe. A
    probe does not use the target, so the target of its search is uniform, which needs no data.
    """

    kind = "probe"

    k: int = Field(
        20,
        ge=1,
        le=10_000,
        description=(
            "How many results to find and to probe; with probe.depth, only the first of them are "
            "probed."
        ),
    )
    method: Method = Field("baseline", description="How to rank, as in a search.")
    target: WrittenTarget = Field(
        Target.parse("uniform:1"), description="The target of the search; a probe does not use it."
    )
    probe: ProbeSettings = Field(description="What to ask the model.")

    @model_validator(mode="after")
    def _probed_attribute_is_measured(self) -> ProbeContext:
        attribute = self.probe.attribute
        if not self.attributes:
            if not self.intersect:
                object.__setattr__(self, "attributes", (attribute,))
        elif not any(attribute in factors_of(name) for name in self.attributes):
            raise ValueError(
                f"the attribute of the probe, '{attribute}', is not among 'attributes'; add it"
            )
        return self
