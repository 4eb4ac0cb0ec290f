"""Runs, judgements and groups as researchers hold them: dicts, data frames, files, ir_datasets."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.base.extras import library
from fairqr.base.loops import run_blocking
from fairqr.evaluation.collections.labels import (
    Groups,
    scan_corpus,
    scan_engine,
    with_unknown,
)
from fairqr.evaluation.qrels import HIGHEST_GRADE, Qrels, read_qrels
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.fairness.ranking import OrderedView, Ranking, best_positions
from fairqr.retrieval.sources.corpus import BUILT_IN, Corpus, find_corpus
from fairqr.retrieval.sources.runs import TIES, SystemRun, Ties, check_ties, read_run, refuse_ties
from fairqr.retrieval.sources.schema import NAME, UNKNOWN, Attribute, Schema, as_text
from fairqr.retrieval.sources.source import Source

COLUMNS = {"query_id": ["qid"], "doc_id": ["docno"], "relevance": ["label", "rel"]}
"""Other names of columns, such as PyTerrier's; of several for the same, the first is taken."""

RUN_FORMS = (
    "a path, a dict such as {'q1': {'d1': 2.5}} or {'q1': ['d1', 'd2']}, or a pandas data frame "
    "with the columns query_id, doc_id and score"
)
QRELS_FORMS = (
    "a path, the id of an ir_datasets dataset, a dict such as {'q1': {'d1': 1}}, or a pandas data "
    "frame with the columns query_id, doc_id and relevance"
)
GROUPS_FORMS = (
    "a dict such as {'d1': 'female'}, {'d1': ['north', 'south']}, {'d1': {'female': 0.5, "
    "'male': 0.5}} or {'d1': {'gender': 'female', 'place': 'north'}}, a pandas data frame with the "
    "column doc_id and one for each attribute, a corpus or a source"
)
ATTRIBUTE = "group"
"""The name of the attribute if the documents have groups only."""


def as_run(run: Any, name: str = "run", *, ties: Ties = "rank") -> SystemRun:
    """Return a run.

    Args:
        run: A run, or one of the forms above. Documents are ordered by score; lists of ids are in
            order already. Also a list of named tuples with query_id, doc_id and score.
        name: The name of a run that has none.
        ties: How to order equal scores; see :func:`fairqr.retrieval.sources.runs.read_run`. Only a
            file has ranks, so elsewhere ``rank`` orders them by id.

    Raises:
        InputError: It has another form, a score is not a finite number, or scores are tied and ties
            are refused.
    """
    if isinstance(run, SystemRun):
        return run
    if isinstance(run, str | Path):
        return read_run(Path(run), ties=ties)
    check_ties(ties)
    ties = "id" if ties == "rank" else ties
    rankings: dict[str, list[Ranking]] = {}
    tied = 0
    for query, documents in _by_query(run, "score", "run", RUN_FORMS).items():
        ranking = _ranking(query, documents, ties)
        equal = int((np.diff(ranking.scores) == 0).sum())
        if equal and ties == "error":
            refuse_ties("The run", query, equal)
        tied += equal
        rankings[query] = [ranking]
    return SystemRun(name, rankings, tied, TIES[ties])


def as_qrels(qrels: Any) -> Qrels | None:
    """Return judgements.

    Args:
        qrels: One of the forms above, an ir_datasets dataset, or a list of named tuples with
            query_id, doc_id and relevance; None stays None.

    Raises:
        InputError: It has another form, or a grade is not a whole number.
    """
    if qrels is None:
        return None
    if isinstance(qrels, str | Path):
        if Path(qrels).exists():
            return read_qrels(Path(qrels))
        qrels = _dataset(str(qrels))
    if hasattr(qrels, "qrels_iter"):
        try:
            qrels = list(qrels.qrels_iter())
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"ir_datasets cannot give the judgements: {one_line(error)}; see ir-datasets.com."
            ) from None
    wanted = f"a whole number of at most {HIGHEST_GRADE:,}"
    found: dict[str, dict[str, int]] = {}
    for query, documents in _by_query(qrels, "relevance", "judgements", QRELS_FORMS).items():
        if not isinstance(documents, Mapping):
            raise InputError(
                f"The judgements of '{one_line(query)}' are not a dict from document to grade; "
                f"give {QRELS_FORMS}."
            )
        own = _by_id(documents)
        grades = _numbers(own, f"grade for '{one_line(query)}'", wanted, _is_grade)
        found[query] = dict(zip(own, grades.astype(int).tolist(), strict=True))
    return found


def _is_grade(numbers: FloatArray) -> Any:
    return (numbers == np.round(numbers)) & (np.abs(numbers) <= HIGHEST_GRADE)


def as_groups(groups: Any, ids: Collection[str]) -> Groups | None:
    """Return the groups of documents.

    Args:
        groups: One of the forms above. A corpus is read once, a source is queried; None stays None.
        ids: The documents whose groups are needed.

    Raises:
        InputError: It has another form, or a label is wrong.
    """
    if groups is None or isinstance(groups, Groups):
        return groups
    if isinstance(groups, str | Path):
        path = Path(BUILT_IN.get(str(groups), groups))
        is_file = path.suffix not in (".yaml", ".yml") and path.exists()
        groups = find_corpus(path) if is_file else str(groups)
    if isinstance(groups, Corpus):
        return scan_corpus(groups, ids)
    if isinstance(groups, str | Source):
        return run_blocking(_asked(groups, ids))
    if not isinstance(groups, Mapping) and not _is_frame(groups):
        raise InputError(f"The groups are of type {type(groups).__name__}; give {GROUPS_FORMS}.")
    read = _labels_of_dict if isinstance(groups, Mapping) else _labels_of_frame
    documents, by_attribute = read(groups)
    read_in = {name: _memberships(name, labels) for name, labels in by_attribute.items()}
    arrays = {name: array for name, (_, array) in read_in.items()}
    schema = Schema(attributes={name: attribute for name, (attribute, _) in read_in.items()})
    rows = {id_: row for row, id_ in enumerate(documents)}
    shares = {name: array.mean(axis=0) for name, array in arrays.items()}
    return Groups(schema, rows, arrays, len(rows), shares)


async def _asked(source: str | Source, ids: Collection[str]) -> Groups:
    from fairqr.retrieval.sources.catalog import Catalog

    engine = await Catalog().resolve(source)
    try:
        return await scan_engine(engine, ids)
    finally:
        await engine.aclose()


def _ranking(query: str, documents: Any, ties: Ties) -> Ranking:
    """Return the documents in order."""
    if isinstance(documents, Mapping):
        own = _by_id(documents)
        scores = _numbers(own, f"score for '{one_line(query)}'", "a finite number", np.isfinite)
        ids = list(own)
        order = best_positions(ids, scores, descending=ties == "trec_eval")
        # Most measures read the first ranks alone, so that all of them are not put in order here.
        return Ranking(OrderedView(ids, order), array("d", scores[order].tobytes()))
    if isinstance(documents, Sequence) and not isinstance(documents, str):
        ids = [_id(it, "document") for it in documents]
        if len(set(ids)) < len(ids):
            raise InputError(f"The ranking of '{one_line(query)}' has a document twice; keep one.")
        return Ranking(ids, [float(-place) for place in range(len(ids))])
    raise InputError(
        f"The ranking of '{one_line(query)}' is of type {type(documents).__name__}; give a "
        "dict from document to score, or a list of documents, best first."
    )


def _numbers(
    given: Mapping[str, Any], what: str, wanted: str, fits: Callable[[FloatArray], Any]
) -> FloatArray:
    """Return numbers that documents have, all of which must fit."""

    def read(values: list[Any]) -> FloatArray | None:
        try:
            found = np.array(values)
        except ValueError:  # lists of several lengths
            return None
        numbers = found.astype(np.float64) if found.dtype.kind in "biuf" else None
        return numbers if numbers is not None and found.ndim == 1 and fits(numbers).all() else None

    numbers = read(list(given.values()))
    if numbers is None:
        odd = next(id_ for id_, value in given.items() if read([value]) is None)
        number = one_line(repr(given[odd]), 60)
        raise InputError(f"'{one_line(odd)}' must have {wanted} as its {what}, not {number}.")
    return numbers


def _by_id(given: Mapping[Any, Any], what: str = "document") -> dict[str, Any]:
    """Return what is given by ids as text; 1 and "1" are the same id."""
    if set(map(type, given)) <= {str}:
        return dict(given)
    found = {_id(id_, what): value for id_, value in given.items()}
    if len(found) < len(given):
        twice = next(str(it) for it in given if not isinstance(it, str) and str(it) in given)
        raise InputError(
            f"The {what} '{one_line(twice)}' is there twice, as a number and as text; keep one."
        )
    return found


def _id(value: Any, what: str) -> str:
    if isinstance(value, str | int | np.integer) and not isinstance(value, bool):
        return str(value)
    raise InputError(
        f"The id of a {what} must be text or a whole number, not {one_line(repr(value), 60)}."
    )


def _by_query(given: Any, value: str, what: str, forms: str) -> dict[str, Any]:
    """Return what is given by query; rows of a data frame, or records, as dicts by document."""
    if isinstance(given, Mapping):
        return _by_id(given, "query")
    if not _is_frame(given):
        records = list(given) if isinstance(given, Iterable) else []
        if not all(hasattr(record, "_fields") for record in records or [given]):
            raise InputError(f"The {what} cannot be of type {type(given).__name__}; give {forms}.")
        given = library("pandas", "A list of records").DataFrame(records)
    names = ["query_id", "doc_id", value]
    frame = given[[_column(given, name, what) for name in names]].set_axis(names, axis=1)
    if (twice := frame.duplicated(names[:2])).any():
        row = int(twice.argmax())
        query, document = frame[names[:2]].iloc[row]
        raise InputError(
            f"In row {row + 1} of the {what} the document '{one_line(document)}' appears a "
            f"second time for '{one_line(query)}'; keep one."
        )
    found: dict[Any, dict[Any, Any]] = {}
    for query, document, number in zip(*(frame[name].tolist() for name in names), strict=True):
        found.setdefault(query, {})[document] = number
    return _by_id(found, "query")


def _is_frame(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns")


def _column(frame: Any, name: str, what: str) -> Any:
    """Return what a data frame calls a column, which it must have once."""
    there = list(frame.columns)
    for found in [name, *COLUMNS.get(name, ())]:
        if there.count(found) == 1:
            return found
    raise InputError(
        f"The data frame of the {what} needs the column {name}, once; it has "
        f"{', '.join(map(str, there)) or 'none'}."
    )


def _dataset(name: str) -> Any:
    """Return an ir_datasets dataset."""
    datasets = library("ir_datasets", f"There is no file {name}. A dataset of that id")
    try:
        dataset = datasets.load(name)
    except KeyError:
        raise InputError(
            f"There is no file {name}, and no ir_datasets dataset has that id."
        ) from None
    if not dataset.has_qrels():
        raise InputError(f"The ir_datasets dataset '{one_line(name)}' has no judgements.")
    return dataset


def _labels_of_frame(given: Any) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the documents of a data frame, and their labels by attribute: all other columns."""
    frame = given.set_index(_column(given, "doc_id", "groups"))
    if not frame.index.is_unique:
        twice = frame.index[frame.index.duplicated()][0]
        raise InputError(
            f"The data frame of the groups has the document '{one_line(twice)}' in several rows; "
            "keep one, with a list of groups where there are several."
        )
    labels = frame.astype(object).mask(frame.isna(), None)
    return [*_by_id(dict.fromkeys(frame.index.tolist()))], {
        str(name): column.tolist() for name, column in labels.items()
    }


def _labels_of_dict(groups: Mapping[Any, Any]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the documents of a dict, and their labels by attribute."""
    own = _by_id(groups)
    if not any(map(_has_attributes, own.values())):
        return list(own), {ATTRIBUTE: list(own.values())}
    for id_, label in own.items():
        if label and not _has_attributes(label):
            raise InputError(
                f"Some documents have attributes, but '{one_line(id_)}' has none; give each "
                "document a dict such as {'gender': 'female'}."
            )
    names = dict.fromkeys(name for label in own.values() for name in label or ())
    return list(own), {
        str(name): [(label or {}).get(name) for label in own.values()] for name in names
    }


def _has_attributes(label: Any) -> bool:
    """Return whether a label is a dict of attributes, and not of groups with weights."""
    return isinstance(label, Mapping) and any(
        isinstance(value, bool) or not isinstance(value, int | float | np.number)
        for value in label.values()
    )


def _memberships(name: str, given: Sequence[Any]) -> tuple[Attribute, Any]:
    """Return the attribute whose groups these labels name, and the memberships, shape (n, G+1)."""
    if not NAME.search(name):
        raise InputError(
            f"The attribute '{one_line(name)}' cannot be called so; write its name with letters, "
            "digits, _ and -, such as birth_year."
        )
    labels = list(map(_label, given))
    _, first, rows = np.unique(list(map(repr, labels)), return_index=True, return_inverse=True)
    kinds = [labels[place] for place in first]
    named = sorted({group for label in kinds for group in _groups_in(label)} - {UNKNOWN})
    if not named:
        raise InputError(f"No document has a group of '{one_line(name)}'.")
    try:
        attribute = Attribute(name=name, field=name, groups=tuple(named))
        known = np.array([attribute.membership(label) for label in kinds])
    except ValidationError as error:
        _, reason = first_problem(error)
        raise InputError(f"The groups of '{one_line(name)}' are wrong: {reason}.") from None
    except ValueError as error:
        raise InputError(f"A label of '{one_line(name)}' is wrong: {one_line(error)}.") from None
    return attribute, with_unknown(known)[rows]


def _label(given: Any) -> Any:
    """Return a label with None for NaN, and with a list for an array or a set."""
    if isinstance(given, float) and np.isnan(given):
        return None
    if isinstance(given, np.ndarray | list | tuple | set | frozenset):
        return [group for group in map(_label, list(given)) if group is not None]
    return given


def _groups_in(label: Any) -> Iterable[str]:
    if isinstance(label, str) or not isinstance(label, Iterable):
        label = () if label is None or (isinstance(label, str) and not label) else (label,)
    return map(as_text, label)
