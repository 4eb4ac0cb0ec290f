"""The sources that a user has attached by name.

Each has a note ``<name>.json`` that says where its file is. The file stays there, so edits take
effect.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ValidationError

from fairqr.base.errors import (
    IndexNotFoundError,
    InputError,
    SourceError,
    nearest_names,
    one_line,
)
from fairqr.base.files import write_beside
from fairqr.retrieval.sources.source import Source, load_source


class _Note(BaseModel):
    """What we note about an attached source: where its file is."""

    path: Path


class AttachedSources:
    """The attached sources whose notes are in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def paths(self) -> dict[str, Path]:
        """Return the file of each source, by name."""
        notes = {path.stem: self._note(path.stem) for path in sorted(self._folder.glob("*.json"))}
        return {name: note.path for name, note in notes.items() if note}

    def attach(self, path: Path) -> Source:
        """Attach the source that a file describes.

        Raises:
            SourceError: The file does not describe a source.
            InputError: Another source already has this name.
        """
        path = path.absolute()
        source = load_source(path)
        note = self._note(source.name)
        if note and note.path != path and note.path.exists():
            raise InputError(
                f"The name '{source.name}' belongs to the source {note.path}; remove that with "
                f"'fairqr source remove {source.name}', or give this one another name."
            )
        write_beside(self._path(source.name), _Note(path=path).model_dump_json(indent=1))
        return source

    def detach(self, name: str) -> None:
        """Forget a source; its file and its engine stay as they are.

        Raises:
            IndexNotFoundError: There is no such source.
        """
        if self._note(name) is None:
            raise self._no_such(name)
        self._path(name).unlink(missing_ok=True)

    def source(self, name: str) -> tuple[Source, Path]:
        """Return a source as its file describes it now, and the file.

        Raises:
            IndexNotFoundError: There is no such source.
            SourceError: The file is gone, or no longer describes the source.
        """
        note = self._note(name)
        if note is None:
            raise self._no_such(name)
        remedy = (
            f"attach it again with 'fairqr attach FILE', or forget it with 'fairqr source remove "
            f"{name}'"
        )
        if not note.path.exists():
            raise SourceError(f"The file {note.path} of the source '{name}' is gone; {remedy}.")
        source = load_source(note.path)
        if source.name != name:
            raise SourceError(
                f"The file {note.path} of the source '{name}' now has the name '{source.name}'; "
                f"{remedy}."
            )
        return source, note.path

    def refuse(self, name: str) -> None:
        """Refuse to change an attached source.

        Raises:
            InputError: A source of this name is attached.
        """
        if self._note(name) is not None:
            raise InputError(
                f"'{name}' is an attached source, and fairqr never changes those; "
                f"'fairqr source remove {name}' only forgets its name."
            )

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _note(self, name: str) -> _Note | None:
        try:
            return _Note.model_validate_json(self._path(name).read_bytes())
        except (OSError, ValidationError):
            return None

    def _no_such(self, name: str) -> IndexNotFoundError:
        near = nearest_names(name, self.paths())
        listed = "'fairqr source list' lists them."
        return IndexNotFoundError(
            f"There is no attached source '{one_line(name, 60)}'; {near or listed}"
        )
