"""Opens rankers by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fairqr.agents.ranking.item_ranker import ItemRanker, Shown
from fairqr.base.errors import InputError, ModelUnavailableError, one_line

if TYPE_CHECKING:
    from fairqr.agents.models.language_model import LanguageModel
    from fairqr.prompts.library import PromptLibrary

RankerName = Literal["listwise", "pairwise", "monot5", "monobert"]

RANKERS: Mapping[RankerName, str] = {
    "listwise": "a language model that sorts overlapping windows, from the last to the first "
    "(RankGPT, Sun et al. 2023)",
    "pairwise": "a language model that compares documents two at a time, in both orders "
    "(PRP, Qin et al. 2024)",
    "monot5": "a T5 that says whether a document is relevant (Nogueira et al. 2020)",
    "monobert": "a BERT that classifies a document as relevant (Nogueira & Cho 2019)",
}

Strategy = Literal["all", "sorting", "sliding"]
"""Every pair once; a merge sort; or bubble passes from the end of the list to its beginning."""

By = Literal["probabilities", "reply"]
"""How a pair is decided: by the probabilities of the labels, or by reading a reply."""


@dataclass(frozen=True, slots=True)
class RankerOptions:
    """How a ranker works, in ranges that the caller checked; each uses what it needs.

    Attributes:
        shown: What it reads of an item.
        length: The most characters of an item that are shown.
        window, step: The windows of the listwise ranker; the step is smaller than the window.
        context: How many tokens the model reads and writes at once; defaults to what the model
            states, or no limit.
        strategy: Which pairs the pairwise ranker compares: all, those of a sort, or sliding passes.
        passes: How many passes the sliding strategy makes.
        by: How the pairwise ranker asks, if the model can.
        concurrency: How many comparisons run at the same time, over all lists.
        weights: The hub id or folder of monoT5 or monoBERT.
        versions: The versions of prompts, by id.
    """

    shown: Shown = "title_text"
    length: int = 2000
    window: int = 20
    step: int = 10
    context: int | None = None
    strategy: Strategy = "sorting"
    passes: int = 10
    by: By = "probabilities"
    concurrency: int = 8
    weights: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


DEFAULTS = RankerOptions()


def open_ranker(
    name: str,
    model: LanguageModel | None = None,
    prompts: PromptLibrary | None = None,
    options: RankerOptions = DEFAULTS,
) -> ItemRanker:
    """Return a ranker.

    Args:
        name: One of :data:`RANKERS`.
        model: The language model to ask; monoT5 and monoBERT need none.
        prompts: The library of prompts.
        options: How the ranker works.

    Raises:
        InputError: The ranker does not exist.
        ModelUnavailableError: The ranker needs a language model, but none is given.
        PromptError: The prompt does not exist.
    """
    from fairqr.agents.ranking.listwise import ListwiseRanker
    from fairqr.agents.ranking.pairwise import PairwiseJudge, PairwiseRanker
    from fairqr.agents.ranking.pointwise import MODELS, PointwiseRanker
    from fairqr.prompts.library import PromptLibrary

    if name in MODELS:
        return PointwiseRanker(name, options)
    if name not in RANKERS:
        raise InputError(f"There is no ranker '{one_line(name)}'; choose {', '.join(RANKERS)}.")
    if model is None:
        raise ModelUnavailableError(
            f"The ranker {name} asks a language model, but none is given; name one, such as "
            "openai:gpt-4o or local:smollm2-135m."
        )
    prompt = (prompts or PromptLibrary()).get(name, options.versions.get(name))
    if name == "listwise":
        return ListwiseRanker(model, prompt, options)
    return PairwiseRanker(PairwiseJudge(model, prompt, options), options)
