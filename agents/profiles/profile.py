"""The profile of a model: what was measured of it on one collection with judgements."""

from __future__ import annotations

import datetime

from pydantic import BaseModel, ConfigDict, Field

from fairqr.retrieval.fairness.relevance import EvidenceWeights


class _Record(BaseModel):
    """A record that never changes, and has no other fields than those that it states."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Change(_Record):
    """How a figure changed, with the 95 % interval of the mean over topics.

    Attributes:
        value: The mean.
        low: The lower end of the interval; None if there are too few topics to tell.
        high: The upper end.
    """

    value: float
    low: float | None = None
    high: float | None = None


class SearchCost(_Record):
    """What a model costs in one search, on average.

    Attributes:
        calls: How many questions it is asked.
        tokens: How many tokens it reads and writes.
        seconds: How long the search takes beside three others, with the time that replies of the
            cache took when they were made.
    """

    calls: float = Field(0.0, ge=0)
    tokens: float = Field(0.0, ge=0)
    seconds: float = Field(0.0, ge=0)


class ModelProfile(_Record):
    """What was measured of a model on one collection.

    Weights are fitted on one half of the topics, and all figures are of the other half. They
    compare searches with the model to the same searches without it.

    Attributes:
        model: The name of the model.
        prompts: The versions of its prompts, by id; empty for a model without prompts.
        collection: The name of the collection.
        corpora: The indexes that hold its documents: by name, or by the hash of their content.
        weights: How much the model's words count; 0 if the fitted ones brought no gain to the other
            half, whose figures are then those of the fitted ones. After a quick measurement that
            found no gain and no sure loss, those of a model that nobody measured, with its share.
        gain: The change of nDCG@20 × AWRF@20 (in bits), in per cent.
        relevance: The change of nDCG@20.
        fairness: The change of AWRF@20 in bits.
        share: How much of what a search lacks the model brings: the sum of the changes of the
            product, divided by the sum of 1 − p·F of the searches without the model. p is the mean
            probability of relevance of the first 20, and F their fairness.
        topics: How many topics the figures are over.
        fitted: How many topics the weights were fitted on.
        searches: How many searches the figures are over, one for each topic, attribute and form of
            query.
        cost: What a search costs.
        seed: Draws the halves.
        is_quick: Whether the model was only asked about some of the topics.
        date: When it was measured.
    """

    model: str
    prompts: dict[str, str] = Field({})
    collection: str
    corpora: tuple[str, ...]
    weights: EvidenceWeights
    gain: Change
    relevance: Change
    fairness: Change
    share: float = Field(ge=0, le=1)
    topics: int = Field(ge=1)
    fitted: int = Field(ge=1)
    searches: int = Field(ge=1)
    cost: SearchCost = SearchCost()
    seed: int = 0
    is_quick: bool = False
    date: datetime.date

    @property
    def key(self) -> tuple[str, str, tuple[tuple[str, str], ...]]:
        """What the profile is kept by: model, collection and prompts."""
        return self.model, self.collection, tuple(sorted(self.prompts.items()))
