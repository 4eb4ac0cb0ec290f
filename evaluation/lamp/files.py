"""LaMP's files: a list of questions with profiles, and an object with the golds."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fairqr.base.errors import CorpusError, InputError, first_problem, one_line
from fairqr.base.extras import library
from fairqr.retrieval.sources.documents import open_text

QUESTIONS, OUTPUTS = "questions", "outputs"
ENDINGS = (".json", ".json.gz")
M = TypeVar("M", bound=BaseModel)

DEEPEST = 100
MARK = b"\xef\xbb\xbf"
"""Some editors put it before the first character of a file."""

Event = tuple[str, Any]


class Entry(BaseModel):
    """An entry of a file of questions.

    Attributes:
        input: What is asked, with the text that it is about.
        profile: The documents as in the file; optional.
    """

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    id: str
    input: str
    profile: list[dict[str, Any]] | None = None


class _Gold(BaseModel):
    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    id: str
    output: str


@dataclass(slots=True)
class Outputs:
    """What a file of outputs has.

    Attributes:
        task: As the file calls it; empty where it does not.
        golds: By the id of a question its gold, of those that were asked for.
    """

    task: str = ""
    golds: dict[str, str] = field(default_factory=dict)


def find_files(path: Path) -> tuple[Path, Path]:
    """Find a file of questions and the outputs that belong to it.

    Args:
        path: A folder with ``questions.json`` or one file such as ``dev_questions.json``, also
            packed as ``.gz``; or the file of questions itself, where a folder has several. With
            several, ``questions.json`` and then ``dev_questions.json`` come first, since the
            experiments of Fair RAG are made on the development split.

    Raises:
        CorpusError: A file is missing.
        InputError: There are several, and none of them comes first.
    """
    questions = _questions_in(path) if path.is_dir() else path
    if QUESTIONS not in questions.name or not questions.is_file():
        raise CorpusError(
            f"There is no file of LaMP's questions {path}; name a folder with questions.json and "
            "outputs.json, or the file of questions."
        )
    stem = _stem(questions).replace(QUESTIONS, OUTPUTS)
    for ending in ENDINGS:
        if (outputs := questions.with_name(stem + ending)).is_file():
            return questions, outputs
    raise CorpusError(
        f"{questions} has no outputs beside it; put {stem}.json there, which has the golds."
    )


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".json")


def _questions_in(folder: Path) -> Path:
    found = [path for ending in ENDINGS for path in sorted(folder.glob(f"*{QUESTIONS}{ending}"))]
    if not found:
        raise CorpusError(
            f"The folder {folder} has no questions.json, nor a file such as dev_questions.json; "
            "docs/how-to/measure-fair-rag.md describes LaMP's files."
        )
    for stem in (QUESTIONS, f"dev_{QUESTIONS}"):
        for path in found:
            if _stem(path) == stem:
                return path
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise InputError(f"The folder {folder} has {names}; name one of these files.")
    return found[0]


def is_lamp(path: Path) -> bool:
    """Return whether a path looks like LaMP's files: a folder with questions, or questions."""
    if path.is_dir():
        return any(next(path.glob(f"*{QUESTIONS}{ending}"), None) for ending in ENDINGS)
    return path.name.endswith(ENDINGS) and QUESTIONS in path.name


def read_entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of a file of questions, one at a time.

    Raises:
        CorpusError: The file cannot be read, is no list, or an entry has no id or no input; the
            entry is counted.
    """
    for number, (key, data) in enumerate(read_json(path), start=1):
        if key:
            refuse(path, "it is an object, and not a list of entries")
        yield _checked(Entry, data, path, f"entry {number}")


def read_outputs(path: Path, ids: Collection[str]) -> Outputs:
    """Read the task and the golds of these questions.

    Raises:
        CorpusError: The file cannot be read, or is not ``{"task": …, "golds": [{id, output}]}``.
    """
    outputs = Outputs()
    golds = 0
    for key, value in read_json(path):
        if not key:
            refuse(path, "it is a list, and not an object with golds")
        elif key == "golds":
            golds += 1
            gold = _checked(_Gold, value, path, f"gold {golds}")
            if gold.id in ids:
                outputs.golds.setdefault(gold.id, gold.output)
        elif key == "task" and isinstance(value, str):
            outputs.task = value
    return outputs


def _checked(kind: type[M], data: object, path: Path, what: str) -> M:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        where, reason = first_problem(error)
        refuse(path, f"{what}, {where or 'the whole'}: {reason}")


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield what a JSON file holds.

    Args:
        path: The file; unpacked while it is read if its name ends in ``.gz``.

    Yields:
        Of an object each key with its value, and if that is a list, with each of its entries; of a
        list each entry, with the key "".

    Raises:
        CorpusError: The file cannot be read on, or is not valid JSON.
        InputError: ijson is not installed.
    """
    ijson = library("ijson", "Reading LaMP's files", "lamp")
    with open_text(path) as file:
        try:
            if file.read(len(MARK)) != MARK:
                file.seek(0)
            yield from _pieces(ijson.basic_parse(file, use_float=True))
        except ijson.JSONError as error:
            what = str(error).partition("\n")[0]
            refuse(path, "it breaks off" if "premature EOF" in what else one_line(what))
        except RecursionError:
            refuse(path, "it is nested too deeply")
        except (OSError, EOFError, zlib.error) as error:
            refuse(path, f"it breaks off ({one_line(error)})")


def refuse(path: Path, why: str) -> NoReturn:
    """Raise for what is wrong with the file."""
    raise CorpusError(f"{path} cannot be read as LaMP's JSON: {why}; fix it.") from None


def _pieces(events: Iterable[Event]) -> Iterator[tuple[str, Any]]:
    from ijson.common import ObjectBuilder

    key, depth = "", 0
    around: list[str] = []
    piece = ObjectBuilder()
    for event, value in events:
        opens, closes = event.startswith("start_"), event.startswith("end_")
        if not depth:
            if event == "map_key":
                key = value
                continue
            if closes:
                around.pop()
                continue
            if opens and (not around or (event == "start_array" and around == ["start_map"])):
                around.append(event)
                continue
        piece.event(event, value)
        depth += opens - closes
        if depth > DEEPEST:
            raise RecursionError
        if not depth:
            yield key, piece.value
            piece = ObjectBuilder()
