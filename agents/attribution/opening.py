"""Opens attributors by their names."""

from __future__ import annotations

from typing import Any

from fairqr.agents.attribution.attributor import Attributor, AttributorName
from fairqr.agents.attribution.llm import LlmAttributor
from fairqr.agents.attribution.nli import TransformersAttributor, is_installed
from fairqr.agents.attribution.overlap import OverlapAttributor
from fairqr.agents.models.cache import ReplyCache, kept_in
from fairqr.agents.models.chat import ChatModel
from fairqr.base.errors import InputError
from fairqr.base.settings import default_model
from fairqr.prompts.library import PromptLibrary

DEFAULT_ATTRIBUTOR = "overlap"
"""It works offline and at once; a study should use ``transformers``."""

ATTRIBUTORS = {
    "overlap": "shared words, without a model; a baseline that sees no paraphrase and no negation",
    "transformers[:MODEL]": "an NLI model: the paper's FacebookAI/roberta-large-mnli, or yours",
    "llm[:MODEL]": "a chat model, asked whether the answer must be true; check it first",
}
"""A line on each kind of attributor, by the form of its name."""


def installed_attributors() -> tuple[str, ...]:
    """Return what judges answers here without a download, the best first."""
    return ("transformers", "overlap") if is_installed() else ("overlap",)


def open_attributor(
    name: str = DEFAULT_ATTRIBUTOR,
    *,
    chat: ChatModel | None = None,
    cache: bool | ReplyCache = True,
    prompts: PromptLibrary | None = None,
    concurrency: int = 8,
    **options: Any,
) -> Attributor:
    """Return an attributor; it loads nothing before it is started.

    Args:
        name: As in ATTRIBUTORS. A threshold may follow, such as ``?threshold=0.7``: the score in
            (0, 1] from which a document counts as used. Without it, entailment must be the top
            label of NLI models, and the threshold is 0.7 for overlap and 0.5 for chat models.
        chat: The chat model of ``llm`` without a name; defaults to the configured one.
        cache: Whether to keep verdicts on disk so that nothing is judged twice, or the cache to
            use. It does not apply to ``chat``, which has its own cache or none.
        prompts: For ``llm``; defaults to the shipped prompts and the user's own.
        concurrency: For ``llm``, how many questions are open at once over all calls.
            Other attributors run one batch after the other.
        options: More for the :class:`ChatModel` that ``llm`` opens, such as ``base_url``; other
            attributors ignore them.

    Raises:
        InputError: The attributor does not exist, or a number is out of range.
        ModelUnavailableError: The name of a chat model is malformed.
    """
    parsed = AttributorName.parse(name)
    if parsed.kind == "overlap" and not parsed.model:
        return OverlapAttributor(parsed)  # faster than a cache
    if parsed.kind == "transformers":
        return TransformersAttributor(parsed, kept_in(cache))
    if parsed.kind != "llm":
        raise InputError(f"There is no attributor '{name}'; choose {', '.join(ATTRIBUTORS)}.")
    if chat is None or parsed.model not in ("", chat.name):
        chat = ChatModel(parsed.model or default_model(), cache=kept_in(cache), **options)
    return LlmAttributor(chat, parsed, prompts, concurrency)
