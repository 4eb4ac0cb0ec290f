"""Opening an attributor by its name."""

from __future__ import annotations

import dataclasses
from typing import Any

from fairqr.agents.attribution.cache import CachedAttributor, Identified
from fairqr.agents.attribution.naming import AttributorName, check_threshold
from fairqr.agents.attribution.verdicts import Attributor
from fairqr.agents.cache import ReplyCache, kept_in
from fairqr.agents.chat import ChatModel
from fairqr.base.errors import InputError
from fairqr.base.settings import default_model
from fairqr.prompts.library import PromptLibrary

__all__ = ["ATTRIBUTORS", "DEFAULT_ATTRIBUTOR", "PAPER_ATTRIBUTOR", "open_attributor"]

DEFAULT_ATTRIBUTOR = "overlap"
"""It works offline and at once; see PAPER_ATTRIBUTOR for what a study should use."""

PAPER_ATTRIBUTOR = "transformers"

ATTRIBUTORS = {
    "overlap": "shared words; no model, a baseline that sees neither paraphrase nor negation",
    "transformers[:MODEL]": "an NLI model, FacebookAI/roberta-large-mnli as in the paper or yours",
    "onnx:FOLDER": "an NLI model that was exported to ONNX: model.onnx, config.json, tokenizer",
    "llm[:MODEL]": "a chat model, asked whether the answer must be true; check it first",
}
"""What there is, in a line each, by how it is written."""


def open_attributor(
    name: str = DEFAULT_ATTRIBUTOR,
    *,
    chat: ChatModel | None = None,
    cache: bool | ReplyCache = True,
    threshold: float | None = None,
    prompts: PromptLibrary | None = None,
    concurrency: int | None = None,
    **options: Any,
) -> Attributor:
    """Return an attributor; nothing is loaded before it is started.

    Args:
        name: As ATTRIBUTORS writes them; options may follow, such as ``?threshold=0.7`` and, where
            a classifier does not name its outputs, ``?entailment=2``.
        chat: The chat model of ``llm`` without a name; the configured one where None.
        cache: Keep verdicts on disk, and never judge the same twice; or where to keep them. A
            ``chat`` that is given has a cache of its own, or none.
        threshold: The score in (0, 1] from which a document counts as used. Where None, that of the
            name; else for NLI models whether entailment is the top label, 0.7 for overlap and 0.5
            for chat models.
        prompts: For ``llm``; the shipped and the user's own where None.
        concurrency: For ``llm``, how many questions are under way at once, over all calls; 8 where
            None. What runs here runs one batch after the other.
        options: More for :class:`ChatModel`, where ``llm`` opens one, such as ``base_url``.

    Raises:
        InputError: There is no such attributor, a number is out of range, or an option is not for
            this attributor.
        ModelUnavailableError: The name of a chat model is malformed.
    """
    parsed = AttributorName.parse(name)
    if check_threshold(threshold) is not None:
        parsed = dataclasses.replace(parsed, threshold=threshold)
    if parsed.entailment is not None and parsed.kind not in ("transformers", "onnx"):
        raise InputError(f"The attributor '{parsed.kind}' has no outputs: leave entailment= out.")
    if options and parsed.kind in ("overlap", "transformers", "onnx"):
        raise InputError(
            f"The attributor '{parsed.kind}' asks no server: leave {next(iter(options))} out, or "
            "choose llm."
        )
    kept = kept_in(cache)
    match parsed.kind, parsed.model:
        case "overlap", "":
            from fairqr.agents.attribution.overlap_attributor import OverlapAttributor

            return OverlapAttributor(parsed)  # quicker than any cache
        case "llm", model:
            from fairqr.agents.attribution.llm_attributor import PARALLEL, LlmAttributor

            if chat is None or model not in ("", chat.name):
                chat = ChatModel(model or default_model(), cache=kept, **options)
            # The chat model keeps its replies; what is equal in a call need not go that far.
            at_once = PARALLEL if concurrency is None else concurrency
            return CachedAttributor(LlmAttributor(chat, parsed, prompts, at_once), None)
        case (("transformers" | "onnx"), _):
            return CachedAttributor(_classifier(parsed), kept)
    raise InputError(
        f"There is no attributor '{parsed.kind}{':' * bool(parsed.model)}{parsed.model}'; "
        f"choose {', '.join(ATTRIBUTORS)}."
    )


def _classifier(name: AttributorName) -> Identified:
    if name.kind == "onnx":
        from fairqr.agents.attribution.onnx_attributor import OnnxAttributor

        return OnnxAttributor(name)
    from fairqr.agents.attribution.transformers_attributor import TransformersAttributor

    return TransformersAttributor(name)
