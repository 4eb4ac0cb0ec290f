"""Reads YAML files that somebody else may have written."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import yaml

from fairqr.base.errors import PromptError

__all__ = ["LARGEST", "plain_yaml", "read_small"]

LARGEST = 200_000
"""The largest size of a prompt's file, in bytes."""


class _Loader(yaml.SafeLoader):
    """A safe loader without aliases: a few lines of aliases can expand to millions of values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("Aliases are not allowed.")
        return super().compose_node(parent, index)


def plain_yaml(content: bytes) -> Any:
    """Parse YAML into plain types.

    Raises:
        yaml.YAMLError: It is not YAML, or has aliases or Python tags.
        ValueError: A value is malformed, such as a date.
        RecursionError: It is nested too deeply.
    """
    return yaml.load(content, _Loader)  # noqa: S506  # the loader is safe


def read_small(path: Path) -> bytes:
    """Return the content of a small file.

    Raises:
        PromptError: It is not a regular file (reading a pipe would block), or it is too large.
        OSError: It cannot be read.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a folder fails below
        raise PromptError(f"The prompt {path} is not a regular file; put one there.")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise PromptError(f"The prompt {path} has more than {LARGEST:,} bytes; make it shorter.")
    return content
