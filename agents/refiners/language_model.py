"""A refiner that asks a language model."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fairqr.agents.models.language_model import LanguageModel
from fairqr.agents.models.reading import BULLET
from fairqr.agents.models.replies import Question, Reply
from fairqr.agents.refiners.cleaning import (
    LIMITS,
    LONGEST_PASSAGE,
    SHOWN_CHARACTERS,
    make_refinement,
)
from fairqr.agents.refiners.refiner import GroupRequest, Refinement, TopicRequest
from fairqr.base.errors import one_line
from fairqr.prompts.template import PromptReference, PromptTemplate, fence

TOPIC_FIELDS = ("topic", "queries", "passage")
"""The fields that a reply about the topic may propose something in."""

GROUP_FIELDS = ("topic", "keywords", "phrases", "names", "passage")
"""The fields that a reply about a group may propose something in."""

LIST_FIELDS = (*LIMITS, "drop")
TEXT_FIELDS = ("passage", "reason")

LONGEST_REASON = 1000

LONGEST_LIST = 1000
"""No model has a use for more entries; a longer list is cut."""

QUOTES = ('""', "''", "“”", "„“", "«»", "‹›", "「」", "``")
"""The pairs of marks that models put around an entry."""

_SMALL_WORD = {"type": "string", "minLength": 2, "maxLength": 16}
_SMALL_WORDS = {"type": "array", "items": _SMALL_WORD, "minItems": 4, "maxItems": 5}
_SMALL_FIELDS = {
    "topic": _SMALL_WORDS,
    "keywords": _SMALL_WORDS,
    "drop": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 4},
    "reason": {"type": "string", "maxLength": 300},
}
"""The fields of prompts for small models, within which they cannot lose themselves."""


def reply_schema(fields: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of a reply with these fields, in this order.

    Only the embedded model is held to its bounds. They are narrow if a prompt asks for nothing but
    what prompts for small models ask for, and otherwise as wide as what is read.
    """
    is_for_small_models = set(fields) <= set(_SMALL_FIELDS)
    properties = {}
    for field in fields:
        if is_for_small_models:
            properties[field] = _SMALL_FIELDS[field]
        else:
            properties[field] = _make_wide_field(field)
    return {
        "type": "object",
        "properties": properties,
        "required": list(fields),
        "additionalProperties": False,
    }


def _make_wide_field(field: str) -> dict[str, Any]:
    """Return the schema of a field of a prompt for large models."""
    if field == "passage":
        return {"type": "string", "maxLength": LONGEST_PASSAGE}
    if field not in LIMITS:
        return _SMALL_FIELDS[field]
    limit = LIMITS[field]
    entry = {"type": "string", "minLength": 1, "maxLength": limit.characters}
    return {"type": "array", "items": entry, "maxItems": limit.entries}


def read_reply(value: Mapping[str, Any], fields: Sequence[str]) -> Mapping[str, Any]:
    """Return what a reply proposes, as lists of texts and as texts.

    What means a list of texts is read as one: a text with commas, lists inside a list, and objects
    with one text each. An entry that is no text becomes None.

    Args:
        value: The reply of a model.
        fields: The fields of which at least one must be there.

    Raises:
        ValueError: None of them is there.
    """
    if all(value.get(field) is None for field in fields):
        raise ValueError(f"it has none of the fields {', '.join(fields)}")
    reply: dict[str, Any] = {}
    for field in LIST_FIELDS:
        reply[field] = _read_entries(field, value.get(field))
    for field in TEXT_FIELDS:
        reply[field] = _read_text(value.get(field))
    reply["reason"] = fence(reply["reason"], LONGEST_REASON)
    return reply


def _read_entries(field: str, entries: object) -> list[str | None]:
    """Return the entries of a list, in whichever form a model writes one."""
    if isinstance(entries, str):
        # Whole queries may have commas.
        parts = re.split(r"[;\n]" if field == "queries" else r"[,;\n]", entries)
        entries = [part for part in parts if part.strip()]
    elif isinstance(entries, Mapping):
        entries = list(entries.values())
    elif not isinstance(entries, list):
        return []
    return list(itertools.islice(_flattened(entries), LONGEST_LIST))


def _flattened(entries: Iterable[object]) -> Iterator[str | None]:
    for entry in entries:
        if isinstance(entry, str):
            yield _unquoted(entry)
        elif isinstance(entry, list):
            yield from _flattened(entry)
        elif isinstance(entry, Mapping):
            texts = [value for value in entry.values() if isinstance(value, str)]
            yield _unquoted(texts[0]) if texts else None
        else:
            yield None


def _unquoted(text: str) -> str:
    """Return a text without bullets before it and quotation marks around it."""
    bare = BULLET.sub("", text).strip()
    if bare[:1] + bare[1:][-1:] in QUOTES:
        bare = bare[1:-1]
    return bare if bare == text else _unquoted(bare)


def _read_text(text: object) -> str:
    """Return a text, or the texts of a list as one."""
    if isinstance(text, list):
        return " ".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""


CHARACTERS_A_TOKEN = 3
"""The least number of characters of an English prompt that make a token."""


def _tokens_of(template: PromptTemplate) -> int:
    """Return about how many tokens a prompt takes at most, with its reply."""
    characters = sum(len(message.content) for message in template.messages)
    return characters // CHARACTERS_A_TOKEN + template.defaults.max_tokens


class LLMRefiner:
    """Asks a language model for words of a group, and for words of the topic.

    Args:
        model: The model.
        prompt: A ``refine`` prompt, which asks about a group. Its input variables are among query,
            attribute, group and keywords. Its output fields are among topic, keywords, phrases,
            names, passage, drop and reason.
        topic_prompt: A ``topic`` prompt, which asks about the topic. Its input variable is query.
            Its output fields are among topic, queries and passage. Without it, the model is asked
            about groups only.

    Attributes:
        name: The name of the model.
        prompts: Identify the prompts.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: PromptTemplate,
        topic_prompt: PromptTemplate | None = None,
    ) -> None:
        self.name = model.name
        templates = [prompt] if topic_prompt is None else [topic_prompt, prompt]
        self.prompts: list[PromptReference] = [template.reference for template in templates]
        self._model = model
        self._template = prompt
        self._topic_template = topic_prompt

    @property
    def tokens_a_question(self) -> int:
        """About how many tokens a question takes at most, with its reply."""
        templates = [self._template]
        if self._topic_template is not None:
            templates.append(self._topic_template)
        return max(_tokens_of(template) for template in templates)

    async def start(self) -> None:
        """Check that nothing is missing; the embedded model starts when it is first asked."""
        await self._model.check()

    async def refine(self, request: GroupRequest, deadline: float | None = None) -> Refinement:
        """Ask the model about a group, clean what it proposes, and keep what is new."""
        values = {
            "query": fence(request.query, 300),
            "attribute": fence(request.attribute, 64),
            "group": fence(request.group, 100),
            "keywords": fence(", ".join(request.keywords), 500) or "none",
        }
        reply = await self._ask(self._template, values, GROUP_FIELDS, request, deadline)
        if reply.status != "ok":
            return Refinement(reply.status, message=reply.message, usage=reply.usage)

        fields = {name: value for name, value in reply.value.items() if name != "queries"}
        refinement = make_refinement(
            fields,
            query=request.query,
            in_use=request.keywords,
            subject=request.group,
            proposer=f"The model {self.name}",
        )
        if refinement.status != "ok":
            return replace(refinement, usage=reply.usage)
        return replace(
            refinement,
            drop=tuple(word for word in request.keywords if word in reply.value["drop"]),
            reason=reply.value["reason"],
            usage=reply.usage,
        )

    async def refine_topic(
        self, request: TopicRequest, deadline: float | None = None
    ) -> Refinement:
        """Ask the model about the topic, clean what it proposes, and keep what is new."""
        if self._topic_template is None:
            message = "The model is not asked about the topic, because no topic prompt is given."
            return Refinement("unsupported", message=message)
        values = {"query": fence(request.query, 300)}
        reply = await self._ask(self._topic_template, values, TOPIC_FIELDS, request, deadline)
        if reply.status != "ok":
            return Refinement(reply.status, message=reply.message, usage=reply.usage)

        fields = {name: reply.value[name] for name in TOPIC_FIELDS}
        refinement = make_refinement(
            fields,
            query=request.query,
            subject=f"the query '{one_line(request.query, SHOWN_CHARACTERS)}'",
            proposer=f"The model {self.name}",
        )
        return replace(refinement, usage=reply.usage)

    async def _ask(
        self,
        prompt: PromptTemplate,
        values: Mapping[str, str],
        fields: Sequence[str],
        request: TopicRequest | GroupRequest,
        deadline: float | None,
    ) -> Reply:
        """Ask the model a question, whose reply has at least one of the fields."""
        question = Question(
            prompt=prompt,
            values={name: values[name] for name in prompt.input_variables},
            schema=reply_schema(prompt.output),
            validate=partial(read_reply, fields=fields),
            temperature=request.temperature,
            seed=request.seed,
            may_ask_again=request.may_ask_again,
            fields=(*LIST_FIELDS, *TEXT_FIELDS),
            main=next((name for name in prompt.output if name in LIMITS), ""),
        )
        return await self._model.ask(question, deadline)
