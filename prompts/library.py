"""The library of prompts, the user's own and the shipped ones, and what each kind needs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from fairqr.base.errors import PromptError, PromptFileError
from fairqr.base.settings import path_of
from fairqr.prompts.template import PromptTemplate, load_template

PromptKey = tuple[str, str]
"""The id and the version of a prompt."""

SHIPPED = Path(__file__).parent / "templates"

DEFAULT_VERSIONS = {"refine": "v4", "listwise": "v2", "pairwise": "v2"}
"""The default version of each prompt; ``v1`` for all others."""

_DOCUMENTS = "question documents"
_PAIR = "premise hypothesis"

CONTRACTS: dict[str, tuple[str, str, str]] = {
    "refine": (
        "query group attribute? keywords?",
        "keywords? phrases? names? topic? passage? drop? reason?",
        "",
    ),
    "topic": ("query", "topic? queries? passage?", ""),
    "answer": (_DOCUMENTS, "", "text title? number?"),
    "names": (_DOCUMENTS, "", "title text? number?"),
    # The fields of documents of the LaMP tasks; see fairqr.evaluation.lamp.
    # The question may stand in two parts, with the documents between them.
    "lamp1": ("documents question? head? tail?", "", "title abstract?"),
    "lamp2": (_DOCUMENTS, "", "description tag"),
    "lamp3": (_DOCUMENTS, "", "text score"),
    "lamp4": (_DOCUMENTS, "", "title text?"),
    "lamp5": (_DOCUMENTS, "", "title abstract?"),
    "lamp6": (_DOCUMENTS, "", "title text?"),
    "lamp7": (_DOCUMENTS, "", "text"),
    # The first asks a model for the probability of Yes, the second for a JSON object.
    "attribute": (_PAIR, "", ""),
    "attribute_json": (_PAIR, "entailed", ""),
    "listwise": ("group query passages number?", "", "number passage"),
    # The reply is A or B, or with the output `order` a ranking of two, such as [2] > [1]; see
    # fairqr.agents.ranking.reply_parser.
    "pairwise": ("group query first second", "order?", ""),
}
"""What the code gives to a kind of prompt, and what it needs back.

These are the input variables of the prompt, the fields of the reply, and the fields of a document
in its ``item``; without any, it has no item. Each are names separated by spaces. A prompt must have
them, but for those that end with a question mark.
"""

ONE_OUTPUT_OF = {
    "refine": ("keywords", "phrases", "names"),
    "topic": ("topic", "queries", "passage"),
}
"""The fields of a reply of which a prompt of these kinds needs at least one."""


class PromptLibrary:
    """Prompts by id and version, each read once from ``<folder>/<id>/<version>.yaml``.

    Args:
        overrides: The user's folder; defaults to ``FAIRQR_PROMPTS_DIR``. A prompt there replaces
            the shipped one with the same id and version, or adds another version.

    Raises:
        PromptError: The folder does not exist. A wrong file is only an error when its prompt is
            requested.
    """

    def __init__(self, overrides: Path | None = None) -> None:
        folder = overrides or path_of("prompts_dir")
        if folder is not None and not folder.is_dir():
            raise PromptError(f"The folder of prompts {folder} does not exist.")
        self._shipped = _paths(SHIPPED)
        self._overrides: dict[PromptKey, PromptTemplate | PromptError] = {}
        if folder is not None:
            # The user's files are read now, so that a library does not change while it is used.
            self._overrides = {key: _read(path) for key, path in _paths(folder).items()}

    def names(self) -> list[tuple[str, str]]:
        """Return the ids and versions of all prompts, sorted."""
        return sorted({*self._shipped, *self._overrides})

    def get(self, id_: str, version: str | None = None) -> PromptTemplate:
        """Return a prompt.

        Args:
            id_: What the prompt is for, e.g. ``refine``.
            version: For example ``v2``; optional.

        Raises:
            PromptError: The prompt does not exist, or its file is wrong.
        """
        key = (id_, version or DEFAULT_VERSIONS.get(id_, "v1"))
        name = "/".join(key)
        if key in self._overrides:
            template = self._overrides[key]
        elif key in self._shipped:
            template = _read_shipped(self._shipped[key])
        else:
            # List the versions of this prompt, or all prompts if the id is unknown.
            same_id = [other for other in self.names() if other[0] == id_]
            choices = ", ".join("/".join(other) for other in same_id or self.names())
            raise PromptError(f"There is no prompt {name}; choose one of {choices}.")
        if isinstance(template, PromptError):
            raise PromptFileError(f"The prompt {name} is unusable: {template}")
        return template


def check_contract(template: PromptTemplate) -> None:
    """Check that the code can use a prompt.

    Raises:
        PromptError: A placeholder, an output or a field is unknown or missing.
    """
    name = template.name
    if template.id not in CONTRACTS:
        kinds = ", ".join(sorted(CONTRACTS))
        raise PromptError(f"The prompt {name} is of an unknown kind; choose one of {kinds}.")
    inputs, outputs, fields = CONTRACTS[template.id]
    _check_names(name, "placeholder", inputs, template.input_variables)
    _check_names(name, "output", outputs, template.output)
    _check_names(name, "field of the item", fields, template.item_variables)
    one_of = ONE_OUTPUT_OF.get(template.id, ())
    if one_of and not set(one_of) & set(template.output):
        raise PromptError(f"The prompt {name} needs one of the outputs {', '.join(one_of)}.")


def _check_names(prompt: str, part: str, names: str, used: Sequence[str]) -> None:
    """Check the names in one part of a prompt.

    Args:
        prompt: The name of the prompt, for the message.
        part: What the names are, for the message.
        names: Those of the contract.
        used: Those of the prompt.

    Raises:
        PromptError: A name is unknown or missing.
    """
    allowed = set(names.replace("?", "").split())
    needed = allowed & set(names.split())
    unknown = set(used) - allowed
    missing = needed - set(used)
    if unknown or missing:
        raise PromptError(
            f"The prompt {prompt} is wrong about the {part} "
            f"'{', '.join(sorted(unknown | missing))}'; it takes '{names}', where ? marks what may "
            "be left out."
        )


def _paths(folder: Path) -> dict[PromptKey, Path]:
    """Return the files of prompts in a folder, by id and version."""
    return {(path.parent.name, path.stem): path for path in folder.glob("*/*.yaml")}


def _read(path: Path) -> PromptTemplate | PromptError:
    """Read a prompt and check that the code can use it, or return what is wrong with it."""
    try:
        template = load_template(path)
        check_contract(template)
    except PromptError as error:
        return error
    return template


_read_shipped = functools.cache(_read)
