"""What is kept of settings and addresses that others may read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WITHHELD = "withheld"

_SECRET = r"(?:pass(?:word|wd|phrase)|pwd|secret|token|api[-_]?key|access[-_]?key|authorization)"  # noqa: S105
_SECRET_NAME = re.compile(rf".*{_SECRET}", re.IGNORECASE)
_SECRET_VALUE = re.compile(rf"((?:[\w.-]*{_SECRET}|[?&]key|[?&]sig(?:nature)?)=)[^&#\s]+", re.I)
_USER = re.compile(r"(://)[^/?#@\s]*@")


def without_secrets(value: Any) -> Any:
    """Return plain data with ``withheld`` in place of passwords, keys and tokens.

    Sources name their credentials and hold none; but an address, a request body or an option of
    the command may.
    """
    if isinstance(value, str):
        return _SECRET_VALUE.sub(rf"\1{WITHHELD}", _USER.sub(r"\1", value))
    if isinstance(value, Mapping):
        members = {}
        for name, member in value.items():
            if isinstance(member, str) and _SECRET_NAME.fullmatch(name):
                members[name] = WITHHELD
            else:
                members[name] = without_secrets(member)
        return members
    if isinstance(value, list | tuple):
        return type(value)(map(without_secrets, value))
    return value
