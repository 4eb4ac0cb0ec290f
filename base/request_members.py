"""More members for the body of a request to a model, as users write them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

OURS = frozenset({"messages", "model", "prompt", "stream"})
"""The members that make a request ours; nobody else sets them."""

EXAMPLE = '{"chat_template_kwargs": {"enable_thinking": false}}'


def _read(members: Any) -> Any:
    """Return the members that a user wrote as JSON, or gave as an object.

    Raises:
        ValueError: They are no JSON object, or are some of ours.
    """
    advice = f"write a JSON object such as {EXAMPLE}"
    if isinstance(members, str):
        try:
            members = json.loads(members)
        except (ValueError, RecursionError):
            raise ValueError(advice) from None
    if not isinstance(members, Mapping):
        raise ValueError(advice)
    reserved = sorted(OURS & members.keys())
    if reserved:
        raise ValueError(f"leave out {reserved[0]}, which fairqr sets itself")
    return dict(members)


RequestMembers = Annotated[dict[str, Any], BeforeValidator(_read)]
"""More members of the body of each request, as JSON data; a text is read as JSON."""
