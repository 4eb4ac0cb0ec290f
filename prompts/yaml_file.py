"""Files of YAML that somebody else may have written."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import yaml

from fairqr.base.errors import PromptError

__all__ = ["LARGEST", "plain_yaml", "read_small"]

LARGEST = 200_000
"""Bytes of a prompt's file."""


class _Loader(yaml.SafeLoader):
    """Without aliases: prompts need none, and a few lines of them stand for millions of values."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("There is an alias.")
        return super().compose_node(parent, index)


def plain_yaml(content: bytes) -> Any:
    """Return what YAML says, which is of plain types.

    Raises:
        yaml.YAMLError: It is none, or has tags of Python or aliases.
        ValueError: A value is none of its kind, such as a date.
        RecursionError: It is nested too deeply.
    """
    return yaml.load(content, _Loader)  # noqa: S506  # it is a safe one


def read_small(path: Path) -> bytes:
    """Return what a file holds.

    Raises:
        PromptError: It is no file, such as a pipe, which would be waited for; or it is large.
        OSError: It cannot be read.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # the system refuses folders
        raise PromptError(f"The prompt {path} is no file; put one there.")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise PromptError(f"The prompt {path} has more than {LARGEST:,} bytes; make it shorter.")
    return content
