"""All prompts: those shipped with fairqr, and the user's own, which come first."""

from __future__ import annotations

from pathlib import Path

from fairqr.errors import PromptError
from fairqr.prompts.contracts import check_contract
from fairqr.prompts.template import PromptTemplate, load_template
from fairqr.settings import prompts_dir

__all__ = ["DEFAULT_VERSIONS", "PromptLibrary"]

SHIPPED = Path(__file__).parent / "templates"

DEFAULT_VERSIONS = {"refine": "v2"}
"""The version of each prompt that is used where none is named."""


class PromptLibrary:
    """Finds prompts by id and version in ``<folder>/<id>/<version>.yaml``.

    Args:
        overrides: The user's folder; ``FAIRQR_PROMPTS_DIR`` where None. A prompt there stands in
            for the shipped one of the same id and version, or adds another version.
    """

    def __init__(self, overrides: Path | None = None) -> None:
        own = overrides or prompts_dir()
        if own is not None and not own.is_dir():
            raise PromptError(f"The folder of prompts {own} does not exist.")
        self.folders = [own, SHIPPED] if own else [SHIPPED]
        self._read: dict[tuple[str, str], PromptTemplate] = {}

    def paths(self) -> list[Path]:
        """Return the files of all prompts in use, by id and version."""
        found: dict[tuple[str, str], Path] = {}
        for folder in self.folders:
            for path in sorted(folder.glob("*/*.yaml")):
                found.setdefault((path.parent.name, path.stem), path)
        return [found[key] for key in sorted(found)]

    def get(self, id_: str, version: str | None = None) -> PromptTemplate:
        """Return a prompt.

        Args:
            id_: What it is for, e.g. ``refine``.
            version: e.g. ``v2``; the default one where None.

        Raises:
            PromptError: There is no such prompt, or its file is wrong.
        """
        key = (id_, version or DEFAULT_VERSIONS.get(id_, "v1"))
        if key not in self._read:
            paths = {(path.parent.name, path.stem): path for path in self.paths()}
            if key not in paths:
                known = ", ".join(f"{id_}/{version}" for id_, version in paths)
                raise PromptError(f"There is no prompt {key[0]}/{key[1]}; there are {known}.")
            self._read[key] = self.read(paths[key])
        return self._read[key]

    @staticmethod
    def read(path: Path) -> PromptTemplate:
        """Read a prompt from a file, and check that the code can use it.

        Raises:
            PromptError: It cannot.
        """
        template = load_template(path)
        check_contract(template)
        return template
