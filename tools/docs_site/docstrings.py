"""Docstrings in Google's style, as Markdown."""

from __future__ import annotations

import inspect
import re

SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):\n((?:(?:    .*)?(?:\n|\Z))+)", re.MULTILINE)
_ENTRY = re.compile(r"^(\*{0,2}[\w., ]+?): (.*(?:\n    .*)*)", re.MULTILINE)


def markdown(docstring: str | None) -> str:
    """Return a docstring as Markdown; the entries of its sections are lists."""
    return _inline(_SECTION.sub(_listed, _clean(docstring))).strip()


def lead_of(docstring: str | None) -> str:
    """Return the docstring without its sections, such as ``Args``."""
    return _inline(_SECTION.sub("", _clean(docstring))).strip()


def _clean(docstring: str | None) -> str:
    return inspect.cleandoc(docstring or "") + "\n"


def _listed(section: re.Match[str]) -> str:
    body = inspect.cleandoc(section[2])
    entries = _ENTRY.findall(body)
    if section[1] in ("Returns", "Yields") or not entries:
        return f"**{section[1]}:** {_joined(body)}\n"
    lines = [f"- `{name}`: {_joined(text)}" for name, text in entries]
    title = "Arguments" if section[1] == "Args" else section[1]
    return "\n".join([f"**{title}:**\n", *lines, ""])


def _joined(text: str) -> str:
    return " ".join(text.split())


def _inline(text: str) -> str:
    """Turn the markup of Sphinx into that of Markdown."""
    text = re.sub(r":\w+:`~?([^`]+)`", lambda role: f"`{role[1].rpartition('.')[2]}`", text)
    return text.replace("``", "`").replace("::\n", ":\n")
