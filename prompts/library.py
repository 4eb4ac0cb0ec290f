"""All prompts: those shipped with fairqr, and the user's own, which come first."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from fairqr.base.errors import PromptError
from fairqr.base.settings import prompts_dir
from fairqr.prompts.contracts import check_contract
from fairqr.prompts.template import PromptTemplate, load_template

__all__ = ["DEFAULT_VERSIONS", "PromptLibrary"]

SHIPPED = Path(__file__).parent / "templates"

DEFAULT_VERSIONS = {"refine": "v4", "listwise": "v2", "pairwise": "v2"}
"""The version of each prompt that is used where none is named."""

Key = tuple[str, str]


class PromptLibrary:
    """Prompts by id and version, read once from ``<folder>/<id>/<version>.yaml``.

    Args:
        overrides: The user's folder; ``FAIRQR_PROMPTS_DIR`` where None. A prompt there stands in
            for the shipped one of the same id and version, or adds another version.

    Raises:
        PromptError: The folder does not exist. A file that is wrong is complained about when its
            prompt is asked for.
    """

    def __init__(self, overrides: Path | None = None) -> None:
        own = overrides or prompts_dir()
        if own is not None and not own.is_dir():
            raise PromptError(f"The folder of prompts {own} does not exist.")
        self._prompts = {**_shipped(), **(_read_all(own) if own else {})}

    def names(self) -> list[Key]:
        """Return the ids and versions of all prompts, in order."""
        return sorted(self._prompts)

    def check(self, versions: Mapping[str, str]) -> None:
        """Check that there are these versions, by the ids of their prompts.

        Raises:
            PromptError: One is missing, or its file is wrong.
        """
        for id_, version in versions.items():
            self.get(id_, version)

    def get(self, id_: str, version: str | None = None) -> PromptTemplate:
        """Return a prompt.

        Args:
            id_: What it is for, e.g. ``refine``.
            version: e.g. ``v2``; the default one where None.

        Raises:
            PromptError: There is no such prompt, or its file is wrong.
        """
        key = (id_, version or DEFAULT_VERSIONS.get(id_, "v1"))
        found = self._prompts.get(key)
        if found is None:
            # The versions of this one, or all where there is none so named.
            alike = [each for each in self.names() if each[0] == id_] or self.names()
            known = ", ".join("/".join(each) for each in alike)
            raise PromptError(f"There is no prompt {'/'.join(key)}; there are {known}.")
        if isinstance(found, PromptError):
            raise PromptError(str(found))
        return found


@functools.cache
def _shipped() -> dict[Key, PromptTemplate | PromptError]:
    return _read_all(SHIPPED)


def _read_all(folder: Path) -> dict[Key, PromptTemplate | PromptError]:
    return {(path.parent.name, path.stem): _read(path) for path in folder.glob("*/*.yaml")}


def _read(path: Path) -> PromptTemplate | PromptError:
    """Read a prompt and check that the code can use it, or return what is wrong with it."""
    try:
        template = load_template(path)
        check_contract(template)
    except PromptError as error:
        return error
    return template
