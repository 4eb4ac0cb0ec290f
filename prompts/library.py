"""The library of prompts, the user's own and the shipped ones, and what each kind needs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

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


class Contract(NamedTuple):
    """What the code gives to a kind of prompt, and what it needs back.

    Each attribute is names with spaces between them. A prompt must have them, except for those
    that end with a question mark.

    Attributes:
        inputs: The input variables of the prompt.
        outputs: The fields of the reply.
        fields: The fields of a document in its ``item``; without any, it has no item.
    """

    inputs: str
    outputs: str = ""
    fields: str = ""


CONTRACTS = {
    "refine": Contract(
        inputs="query group attribute? keywords?",
        outputs="keywords? phrases? names? topic? passage? drop? reason?",
    ),
    "topic": Contract("query", outputs="topic? queries? passage?"),
    "answer": Contract(_DOCUMENTS, fields="text title? number?"),
    "names": Contract(_DOCUMENTS, fields="title text? number?"),
    # The fields of documents of the LaMP tasks; see fairqr.evaluation.lamp.
    # The question may stand in two parts, with the documents between them.
    "lamp1": Contract("documents question? head? tail?", fields="title abstract?"),
    "lamp2": Contract(_DOCUMENTS, fields="description tag"),
    "lamp3": Contract(_DOCUMENTS, fields="text score"),
    "lamp4": Contract(_DOCUMENTS, fields="title text?"),
    "lamp5": Contract(_DOCUMENTS, fields="title abstract?"),
    "lamp6": Contract(_DOCUMENTS, fields="title text?"),
    "lamp7": Contract(_DOCUMENTS, fields="text"),
    # The first asks a model for the probability of Yes, the second for a JSON object.
    "attribute": Contract(_PAIR),
    "attribute_json": Contract(_PAIR, outputs="entailed"),
    "listwise": Contract("group query passages number?", fields="number passage"),
    # The reply is A or B, or with the output `order` a ranking of two, such as [2] > [1]; see
    # fairqr.agents.ranking.reply_parser.
    "pairwise": Contract("group query first second", outputs="order?"),
}
"""The contract of each kind of prompt, by its id."""

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
            for key, path in _paths(folder).items():
                self._overrides[key] = _read(path)

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
            raise PromptError(f"There is no prompt {name}; choose one of {self._choices(id_)}.")
        if isinstance(template, PromptError):
            raise PromptFileError(f"The prompt {name} is unusable: {template}")
        return template

    def _choices(self, id_: str) -> str:
        """Return the versions of a prompt, or all prompts if there is none of this id."""
        keys = [key for key in self.names() if key[0] == id_]
        return ", ".join("/".join(key) for key in keys or self.names())


def check_contract(template: PromptTemplate) -> None:
    """Check that the code can use a prompt.

    Raises:
        PromptError: A placeholder, an output or a field is unknown or missing.
    """
    name = template.name
    if template.id not in CONTRACTS:
        kinds = ", ".join(sorted(CONTRACTS))
        raise PromptError(f"The prompt {name} is of an unknown kind; choose one of {kinds}.")
    contract = CONTRACTS[template.id]
    _check_names(name, "placeholder", contract.inputs, template.input_variables)
    _check_names(name, "output", contract.outputs, template.output)
    _check_names(name, "field of the item", contract.fields, template.item_variables)
    choices = ONE_OUTPUT_OF.get(template.id, ())
    if choices and set(choices).isdisjoint(template.output):
        raise PromptError(f"The prompt {name} needs one of the outputs {', '.join(choices)}.")


def _check_names(prompt: str, part: str, names: str, used: Sequence[str]) -> None:
    """Check the names in one part of a prompt.

    Args:
        prompt: The name of the prompt, for the message.
        part: What the names are, for the message.
        names: The names in the contract.
        used: The names in the prompt.

    Raises:
        PromptError: A name is unknown or missing.
    """
    allowed = set(names.replace("?", "").split())
    needed = allowed & set(names.split())
    unknown = set(used) - allowed
    missing = needed - set(used)
    if unknown or missing:
        wrong = ", ".join(sorted(unknown | missing))
        raise PromptError(
            f"The prompt {prompt} is wrong about the {part} '{wrong}'; it takes '{names}', where ? "
            "marks what may be left out."
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
