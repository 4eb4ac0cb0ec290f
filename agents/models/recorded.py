"""A model that answers refine and topic prompts from a file of replies.

With it, what a paid model brings can be repeated without paying. The form of a file is described in
``recorded_replies/README.md``.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import stat
import unicodedata
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from fairqr.agents.models.cache import cache_key
from fairqr.agents.models.language_model import Exchange, LanguageModel, TokenRelay
from fairqr.agents.models.replies import RECORDED, Question, Usage, Wanted, say_only_refines
from fairqr.base.errors import ModelError, ModelUnavailableError, first_problem, one_line
from fairqr.prompts.template import fence
from fairqr.retrieval.texts.words import composed

SHIPPED = Path(__file__).parent / "recorded_replies"

SHIPPED_NAMES = ("notables", "trec2022")
"""The files that ship, by the names that stand for them."""

LARGEST = 20_000_000
"""The largest file, in bytes; replies to 5,000 queries fit."""

TOPIC_PROMPT = "topic"
GROUP_PROMPT = "refine"

LONGEST_KEY = 300
"""How much of a query or of a group's key is compared; prompts show no more of a query."""

SHOWN = 80
"""How much of a query an error shows."""


class GroupReplies(BaseModel):
    """What a model replied about a group of a query; None if it was not asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    keywords: list[str] | None = None
    phrases: list[str] | None = None
    names: list[str] | None = None
    passage: str | None = None


class QueryReplies(BaseModel):
    """What a model replied about a query; None if it was not asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    topic: list[str] | None = None
    queries: list[str] | None = None
    passage: str | None = None
    groups: dict[str, GroupReplies] = {}


_FILE: TypeAdapter[dict[str, QueryReplies]] = TypeAdapter(dict[str, QueryReplies])


class RecordedModel(LanguageModel):
    """A model whose replies are in a file; it refines queries and can do nothing else.

    A query has the replies of the longest key that it begins with, by whole words and in any case.
    A reply costs neither calls nor tokens, so it counts as a cached call.

    Args:
        file: The path of the file, or one of :data:`SHIPPED_NAMES`. It is read now.

    Attributes:
        fingerprint: A hash of the name and the file's content.
        profiled_as: The name that the model is measured by, which says what is in the file: a hash
            of it, or the name of the shipped file that is the same.

    Raises:
        ModelUnavailableError: The file is missing or is not a file of replies.
    """

    kind = "internal"
    replies_are_recorded = True

    def __init__(self, file: str) -> None:
        path = find_file(file)
        is_shipped = file in SHIPPED_NAMES
        super().__init__(f"{RECORDED}:{file if is_shipped else path.name}", cache=None)
        content = _read(path)
        self._file = path.name
        self._replies = _index_by_query(_parse(content, path), path)
        self._sha256 = hashlib.sha256(content).hexdigest()
        self.fingerprint = cache_key(model=self.name, replies=self._sha256)
        shipped_name = file if is_shipped else _shipped_name_of(content)
        self.profiled_as = f"{self.name}@{self._sha256[:8]}"
        if shipped_name:
            self.profiled_as = f"{RECORDED}:{shipped_name}"

    @property
    def gives_probabilities(self) -> bool:
        """Always false: a recorded model only refines."""
        return False

    async def start(self, wanted: Wanted = "object") -> None:
        """Check that the model can do what it will be asked for.

        Args:
            wanted: What it will be asked for.

        Raises:
            ModelUnavailableError: It will be asked for something else than refinements.
        """
        if wanted != "object":
            raise ModelUnavailableError(say_only_refines(self.name))

    def temperature_of(self, requested: float | None) -> None:
        """Return None, since nothing is sampled."""

    async def _identity(self) -> Mapping[str, Any]:
        return {"model": self.name, "replies": self._sha256}

    def _turn(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext()

    def _attributes(self, question: Question, relay: TokenRelay | None) -> dict[str, Any]:
        return {"gen_ai.provider.name": RECORDED, "fairqr.model": self.name}

    async def _converse(
        self, question: Question, relay: TokenRelay | None, exchange: Exchange
    ) -> Mapping[str, Any]:
        is_asked_to_refine = question.prompt.id in (TOPIC_PROMPT, GROUP_PROMPT)
        if not is_asked_to_refine or question.wanted != "object":
            raise ModelError("unsupported", say_only_refines(self.name))

        reply = self._reply_to(question)
        text = json.dumps(reply, ensure_ascii=False)
        exchange.record("output", [{"role": "assistant", "content": text}])
        exchange.usage = Usage(cached_calls=1)
        return question.validate(reply)

    def _reply_to(self, question: Question) -> dict[str, Any]:
        """Return the fields that a prompt asks for; raises ModelError if there are none."""
        query = question.values.get("query", "")
        subject = f"the query '{one_line(query, SHOWN)}'"
        replies = self._find_replies(query)
        if replies is None:
            raise self._make_error(f"no replies for {subject}")

        recorded = dict(replies)
        if question.prompt.id == GROUP_PROMPT:
            key = _make_group_key(question.values)
            subject = f"the group {key} of {subject}"
            group = _find_group(replies, key)
            if group is None:
                raise self._make_error(f"no replies for {subject}")
            recorded = {"topic": replies.topic, **dict(group)}

        fields = question.prompt.output
        reply = {field: recorded[field] for field in fields if recorded.get(field) is not None}
        if not reply:
            raise self._make_error(f"none of the fields {', '.join(fields)} for {subject}")
        return reply

    def _find_replies(self, query: str) -> QueryReplies | None:
        """Return the replies of the longest key that the query begins with."""
        folded = _fold(query)
        for key, replies in self._replies.items():
            if _begins_with_words(folded, key):
                return replies
        return None

    def _make_error(self, problem: str) -> ModelError:
        """Return the error about a reply that is not in the file."""
        message = f"The file {self._file} has {problem}; add them, or name another model."
        # An experiment takes it for a result, unless the file has no reply to any query.
        return ModelError("invalid_request", message)


def find_file(file: str) -> Path:
    """Return the path of a file of replies, which may be named as a shipped one."""
    if file in SHIPPED_NAMES:
        return SHIPPED / f"{file}.json"
    # Unlike Path.expanduser, this leaves the home of a user whom nobody knows as it is.
    return Path(os.path.expanduser(file))


def _shipped_name_of(content: bytes) -> str | None:
    """Return the name of the shipped file with this content; None if there is none."""
    for name in SHIPPED_NAMES:
        if content == find_file(name).read_bytes():
            return name
    return None


def _read(path: Path) -> bytes:
    """Return the content of a file; raises ModelUnavailableError if it cannot be read."""
    advice = f"name a JSON file of replies, or one of {', '.join(SHIPPED_NAMES)}"
    subject = f"The file of replies {one_line(path, 200)}"
    try:
        status = path.stat()
        is_file = stat.S_ISREG(status.st_mode)  # reading a pipe would block
        is_small = status.st_size <= LARGEST
        content = path.read_bytes() if is_file and is_small else b""
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no file can have this name"
        raise ModelUnavailableError(f"{subject} cannot be read ({reason}); {advice}.") from None
    if not is_file:
        raise ModelUnavailableError(f"{subject} is a folder or no plain file; {advice}.")
    if not is_small:
        raise ModelUnavailableError(
            f"{subject} has {status.st_size:,} bytes, more than {LARGEST:,}; split it."
        )
    return content


def _parse(content: bytes, path: Path) -> dict[str, QueryReplies]:
    """Return the replies in a file by query; raises ModelUnavailableError if its form is wrong."""
    try:
        replies = _FILE.validate_json(content.removeprefix(codecs.BOM_UTF8))
    except ValidationError as error:
        location, reason = first_problem(error)
        position = f" at '{one_line(location, 100)}'" if location else ""
        raise _make_file_error(path, f"is wrong{position} ({one_line(reason, 200)})") from None
    if not replies:
        raise _make_file_error(path, "is empty")
    return replies


def _index_by_query(replies: Mapping[str, QueryReplies], path: Path) -> dict[str, QueryReplies]:
    """Return the replies by what queries are compared with, the longest first.

    Raises:
        ModelUnavailableError: A query is empty, or there twice.
    """
    by_query: dict[str, QueryReplies] = {}
    for query, entry in replies.items():
        folded = _fold(query)
        if not folded:
            raise _make_file_error(path, "has an empty query")
        if folded in by_query:
            raise _make_file_error(path, f"has the query '{one_line(query, SHOWN)}' twice")
        by_query[folded] = entry
    return dict(sorted(by_query.items(), key=lambda item: -len(item[0])))


def _make_file_error(path: Path, problem: str) -> ModelUnavailableError:
    """Return the error about a file of another form."""
    return ModelUnavailableError(
        f"The file of replies {path} {problem}; write an object of queries, each with topic, "
        "queries, passage or groups."
    )


def _fold(text: str) -> str:
    """Return a text as it is compared: as prompts show it, in one case and one Unicode form."""
    return composed(fence(text, LONGEST_KEY).casefold())


def _begins_with_words(text: str, beginning: str) -> bool:
    """Return whether a text begins with these words, so that the last of them is whole."""
    if not text.startswith(beginning):
        return False
    following = text[len(beginning) : len(beginning) + 1]
    return not following or unicodedata.category(following)[0] not in "LMN"


def _make_group_key(values: Mapping[str, str]) -> str:
    """Return the key of the group that a prompt asks about; without an attribute, ``=group``."""
    return f"{values.get('attribute', '')}={values.get('group', '')}"


def _find_group(replies: QueryReplies, key: str) -> GroupReplies | None:
    """Return the replies about a group; a key without an attribute fits any."""
    folded_key = _fold(key)
    has_no_attribute = folded_key.startswith("=")
    for recorded_key, group in replies.groups.items():
        folded = _fold(recorded_key)
        if folded == folded_key or (has_no_attribute and folded.endswith(folded_key)):
            return group
    return None
