"""No text of a request takes more time than its length: a megabyte of anything is read at once."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fairqr.base.errors import ConfigError, InputError
from fairqr.graph.service.execution.openai_requests import ChatRequest
from fairqr.graph.service.store.database import Database
from fairqr.retrieval.fairness.exposure import Discount
from fairqr.retrieval.fairness.protected import ProtectedGroup
from tests.unit.retrieval.embedded import GENDER

LENGTH = 500_000
SECONDS = 5.0
"""A generous time for a busy machine; reading each part again and again would take hours."""


def name_of(content: str) -> str:
    request = ChatRequest.model_validate(
        {"model": "x", "messages": [{"role": "user", "content": content}]}
    )
    return request.name_of_chat


def read_groups(text: str) -> None:
    with pytest.raises(InputError):
        ProtectedGroup.parse(GENDER.attribute("gender"), text)


def read_discount(text: str) -> None:
    with pytest.raises(InputError) as raised:
        Discount.parse(text)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (name_of, "\n" * LENGTH + "x"),
        (name_of, "! " * LENGTH + "user"),
        (name_of, "<a>user:" * (LENGTH // 8)),
        (name_of, "".join(f"<a{number}>user:" for number in range(LENGTH // 16))),
        (name_of, "<a>" + " " * LENGTH),
        (name_of, '"role":' + " " * LENGTH),
        (name_of, "user:\n" * (LENGTH // 6)),
        (read_discount, "rbp(" + "1" * LENGTH + "x"),
        (read_discount, "a" + " " * LENGTH + "!"),
        (read_groups, " " * LENGTH),
        (read_groups, "female" + " " * LENGTH + "male"),
        (read_groups, "vs " * (LENGTH // 3)),
    ],
    ids=[
        "empty lines",
        "exclamation marks",
        "one tag",
        "many tags",
        "tag and spaces",
        "role and spaces",
        "users",
        "digits of a discount",
        "spaces of a discount",
        "spaces",
        "spaces between groups",
        "versus",
    ],
)
def test_a_long_text_is_read_in_a_moment(read: Callable[[str], object], text: str) -> None:
    started = time.monotonic()
    read(text)
    assert time.monotonic() - started < SECONDS


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("<chat>\nUSER: Who was she?\n</chat>", "Who was she?"),
        ("<a>user: Who was she?</a>", "<a>user: Who was she?</a>"),
        ("<a>user: Who was she?", ""),
        ("\n\n  user: Who?\n\n assistant: She.", "Who?"),
    ],
    ids=["tags on lines", "tags within a line", "no end", "no tags"],
)
def test_a_conversation_that_is_quoted_has_a_name(content: str, name: str) -> None:
    assert name_of(content) == name


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="name a file"):
        Database(url)
