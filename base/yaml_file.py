"""Reads YAML files that a person wrote, or somebody whom we do not trust."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fairqr.base.errors import InputError, one_line
from fairqr.base.files import open_file

LARGEST = 1_000_000
"""The most bytes of a file: what people write is far smaller, and a megabyte takes five seconds."""

_BOOLEAN = "tag:yaml.org,2002:bool"


class _RefusedError(Exception):
    """The file has something that we do not take; the arguments are its line and a sentence."""


def _resolvers() -> dict[str, list[tuple[str, Any]]]:
    """Return the rules by which plain words have types, with fewer words for booleans."""
    resolvers = {}
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items():
        resolvers[first] = rules
        if first not in "tTfF":
            resolvers[first] = [rule for rule in rules if rule[0] != _BOOLEAN]
    return resolvers


class _Loader(yaml.SafeLoader):
    """A safe loader without duplicate keys and aliases; only true and false are booleans.

    YAML 1.1 would silently take the last of two equal keys, and read the country code NO as a
    boolean. A few lines of nested aliases expand to millions of values.
    """

    yaml_implicit_resolvers = _resolvers()

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise _RefusedError(
                event.start_mark.line + 1,
                f"has the alias '*{one_line(event.anchor, 60)}'; write its value out there.",
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue
            # True and true are one key, and so are 1 and 01. The signs << and = have no value.
            is_sign = key_node.tag in ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")
            key = key_node.value if is_sign else self.construct_object(key_node)
            if key in keys:
                raise _RefusedError(
                    key_node.start_mark.line + 1,
                    f"has '{one_line(key_node.value)}' twice; remove one of them.",
                )
            keys.add(key)
        return node


def load_yaml(path: Path, kind: str, error_type: type[InputError] = InputError) -> Any:
    """Read a YAML file into plain types.

    Args:
        path: The file.
        kind: What the file is, for messages: ``schema`` or ``source``.
        error_type: The class of errors to raise.

    Raises:
        InputError: The file is missing or is not YAML, has an alias, or has a key twice in a
            mapping, or is too large.
    """
    try:
        with open_file(path) as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        reason = error.strerror
        raise error_type(f"The {kind} {path} cannot be read: {reason}; check the path.") from None
    if len(content) > LARGEST:
        raise error_type(
            f"The {kind} {path} is larger than {LARGEST / 1e6:g} MB; check that it is the right "
            "file."
        )
    return parse_yaml(content, path, kind, error_type)


def parse_yaml(content: bytes, path: Path, kind: str, error_type: type[InputError]) -> Any:
    """Parse the content of a YAML file; see :func:`load_yaml`."""
    try:
        return yaml.load(content.decode(), _Loader)  # noqa: S506 - it is a SafeLoader
    except _RefusedError as error:
        line, sentence = error.args
        raise error_type(f"The {kind} {path}, line {line}, {sentence}") from None
    except Exception as error:
        # It is not UTF-8, not YAML or nested too deeply; and for a value such as the date
        # 2001-99-99 the parser can raise anything.
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = one_line(getattr(error, "problem", None) or error)
        raise error_type(f"The {kind} {path}{line} is not valid YAML ({reason}); fix it.") from None
