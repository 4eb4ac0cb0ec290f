"""Runs, judgements and groups as researchers hold them: dicts, data frames, files, ir_datasets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
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
from fairqr.retrieval.fairness.ranking import Ranking, best_positions
from fairqr.retrieval.sources.corpus import BUILT_IN, Corpus, find_corpus
from fairqr.retrieval.sources.group_values import as_name
from fairqr.retrieval.sources.label_values import values_of, weighted_values
from fairqr.retrieval.sources.runs import (
    COLUMNS,
    TIES,
    SystemRun,
    Ties,
    check_ties,
    column_name,
    read_run,
)
from fairqr.retrieval.sources.schema import UNKNOWN, Attribute, Schema
from fairqr.retrieval.sources.source import Source

FIELDS = {"query_id": "query", "doc_id": "document", "relevance": "grade"}
"""What :data:`fairqr.retrieval.sources.runs.COLUMNS` calls the columns."""

ATTRIBUTE = "group"
"""The name of the attribute if the documents have groups only."""


def as_run(run: Any, name: str = "run", *, ties: Ties = "rank") -> SystemRun:
    """Return a run.

    Args:
        run: A run, or one of the forms of :func:`fairqr.evaluate`. Documents are ordered by score;
            lists of ids are in order already. Also a list of named tuples with query_id, doc_id and
            score.
        name: The name of a run that has none.
        ties: How to order equal scores; see :func:`fairqr.retrieval.sources.runs.read_run`. Only a
            file has ranks, so elsewhere ``rank`` orders them by id.

    Raises:
        InputError: It has another form, or a score is not a finite number.
    """
    if isinstance(run, SystemRun):
        return run
    if isinstance(run, str | Path):
        return read_run(Path(run), ties=ties)
    check_ties(ties)
    ties = "id" if ties == "rank" else ties
    rankings: dict[str, list[Ranking]] = {}
    tied = 0
    for query, documents in _by_query(run, "score", "run").items():
        ranking = _ranking(query, documents, ties)
        tied += int((np.diff(ranking.scores) == 0).sum())
        rankings[query] = [ranking]
    return SystemRun(name, rankings, tied, TIES[ties])


def as_qrels(qrels: Any) -> Qrels | None:
    """Return judgements.

    Args:
        qrels: One of these forms, an ir_datasets dataset, or a list of named tuples with
            query_id, doc_id and relevance; None stays None.

    Raises:
        InputError: It has another form, or a grade is not a whole number.
    """
    if qrels is None:
        return None
    if isinstance(qrels, str | Path):
        if Path(qrels).exists():
            return read_qrels(Path(qrels))
        no_file = f"There is no file {one_line(qrels)}"
        try:
            datasets = library("ir_datasets", f"{no_file}. A dataset of that id")
            qrels = datasets.load(str(qrels))
        except KeyError:
            raise InputError(f"{no_file}, and no ir_datasets dataset has that id.") from None
    if hasattr(qrels, "qrels_iter"):
        qrels = list(qrels.qrels_iter())
    range_of_grades = f"a whole number of at most {HIGHEST_GRADE:,}"
    by_query: dict[str, dict[str, int]] = {}
    for query, documents in _by_query(qrels, "relevance", "judgements").items():
        for_query = f"for '{one_line(query)}'"
        if not isinstance(documents, Mapping):
            raise InputError(f"The judgements {for_query} are not a dict from document to grade.")
        by_id = _by_id(documents)
        grades = _numbers(by_id.values(), f"grade {for_query}", range_of_grades, _is_grade)
        by_query[query] = dict(zip(by_id, grades.astype(int).tolist(), strict=True))
    return by_query


def _is_grade(numbers: FloatArray) -> Any:
    return (numbers == np.round(numbers)) & (np.abs(numbers) <= HIGHEST_GRADE)


def as_groups(groups: Any, ids: Collection[str]) -> Groups | None:
    """Return the groups of documents.

    Args:
        groups: One of these forms. A corpus is read once, a source is queried; None stays None.
        ids: The documents whose groups are needed.

    Raises:
        InputError: It has another form, or a label is wrong.
    """
    if groups is None or isinstance(groups, Groups):
        return groups
    if isinstance(groups, str | Path):
        path = Path(BUILT_IN.get(str(groups), groups))
        is_corpus = path.suffix not in (".yaml", ".yml") and path.exists()
        groups = find_corpus(path) if is_corpus else str(groups)
    if isinstance(groups, Corpus):
        return scan_corpus(groups, ids)
    if isinstance(groups, str | Source):
        return run_blocking(_queried(groups, ids))
    labels = _labels(groups)
    names: dict[Any, None] = {}
    for of_document in labels.values():
        names |= dict.fromkeys(of_document)
    attributes = {}
    arrays = {}
    for name in names:
        values = [of_document.get(name) for of_document in labels.values()]
        attribute, array = _memberships(str(name), values)
        attributes[attribute.name] = attribute
        arrays[attribute.name] = array
    rows = {id_: row for row, id_ in enumerate(labels)}
    shares = {name: array.mean(axis=0) for name, array in arrays.items()}
    return Groups(Schema(attributes=attributes), rows, arrays, shares)


async def _queried(source: str | Source, ids: Collection[str]) -> Groups:
    from fairqr.retrieval.sources.catalog import Catalog

    async with aclosing(await Catalog().resolve(source)) as engine:
        return await scan_engine(engine, ids)


def _ranking(query: str, documents: Any, ties: Ties) -> Ranking:
    """Return the documents in order."""
    for_query = f"for '{one_line(query)}'"
    if isinstance(documents, Mapping):
        by_id = _by_id(documents)
        scores = _numbers(by_id.values(), f"score {for_query}", "a finite number", np.isfinite)
        ids = list(by_id)
        order = best_positions(ids, scores, descending=ties == "trec_eval")
        return Ranking([ids[position] for position in order.tolist()], scores[order].tolist())
    if not isinstance(documents, Sequence) or isinstance(documents, str):
        raise _of_other_type(f"ranking {for_query}", documents)
    ids = [_id(document) for document in documents]
    if len(set(ids)) < len(ids):
        raise InputError(f"The ranking {for_query} has a document twice; keep one.")
    return Ranking(ids, [float(-position) for position in range(len(ids))])


def _numbers(
    values: Collection[Any], noun: str, allowed: str, fits: Callable[[FloatArray], Any]
) -> FloatArray:
    """Return numbers, all of which must fit.

    Args:
        values: The numbers.
        noun: What they are called in the message.
        allowed: What they have to be, in words.
        fits: Says which of them are.
    """
    try:
        array = np.array([*values])
    except ValueError:  # lists of several lengths
        array = np.array(None)
    if array.dtype.kind in "biuf" and array.ndim == 1:
        # Half precision holds no number as large as some limits.
        numbers = array.astype(np.float64)
        if fits(numbers).all():
            return numbers
    raise InputError(f"Each {noun} must be {allowed}.")


def _by_id(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return values by their ids as text; 1 and "1" are the same id."""
    if set(map(type, values)) <= {str}:
        return dict(values)
    by_id: dict[str, Any] = {}
    for id_, value in values.items():
        text = _id(id_)
        if text in by_id:
            raise InputError(f"The id '{text}' is there as a number and as text; keep one.")
        by_id[text] = value
    return by_id


def _id(value: Any) -> str:
    if isinstance(value, float | np.floating) and value.is_integer():  # as pandas has it
        value = int(value)
    if isinstance(value, str | int | np.integer) and not isinstance(value, bool):
        return str(value)
    raise InputError(f"An id must be text or a whole number, not {one_line(repr(value), 60)}.")


def _by_query(data: Any, value: str, noun: str) -> dict[str, Any]:
    """Return data by query; rows of a data frame, or records, as dicts by document.

    Args:
        data: In any form.
        value: The column with the number of each document.
        noun: What the data are called in messages.
    """
    if isinstance(data, Mapping):
        return _by_id(data)
    if not hasattr(data, "columns"):
        if not isinstance(data, Iterable):
            raise _of_other_type(noun, data)
        data = library("pandas", "A list of records").DataFrame([*data])
    names = ["query_id", "doc_id", value]
    columns = [_column(data, name, noun) for name in names]
    frame = data[columns].set_axis(names, axis=1)
    for query, document, _ in frame[frame.duplicated(names[:2])].itertuples(index=False):
        raise InputError(
            f"The {noun} has the document '{one_line(document)}' twice for '{one_line(query)}'; "
            "keep one."
        )
    by_query: dict[Any, dict[Any, Any]] = {}
    for query, document, number in zip(*(frame[name].tolist() for name in names), strict=True):
        by_query.setdefault(query, {})[document] = number
    return _by_id(by_query)


def _of_other_type(noun: str, data: Any) -> InputError:
    kind = type(data).__name__
    return InputError(
        f"The {noun} cannot be of type {kind}; help(fairqr.evaluate) lists the forms."
    )


def _column(frame: Any, name: str, noun: str) -> Any:
    """Return what a data frame calls a column, which it must have once."""
    columns = list(frame.columns)
    names = [column_name(column) for column in columns]
    for known_name in [name, *COLUMNS[FIELDS.get(name, name)]]:
        if names.count(known_name) == 1:
            return columns[names.index(known_name)]
    raise InputError(
        f"The data frame of the {noun} needs the column {name}, once; it has "
        f"{', '.join(map(str, columns)) or 'none'}."
    )


def _labels(groups: Any) -> dict[str, Mapping[Any, Any]]:
    """Return the label of each document by attribute."""
    if hasattr(groups, "columns"):
        frame = groups.set_index(_column(groups, "doc_id", "groups"))
        if not frame.index.is_unique:
            id_ = one_line(frame.index[frame.index.duplicated()][0])
            raise InputError(f"The groups have the document '{id_}' in several rows; keep one.")
        return _by_id(frame.astype(object).mask(frame.isna(), None).to_dict(orient="index"))
    if not isinstance(groups, Mapping):
        raise _of_other_type("groups", groups)
    by_id = _by_id(groups)
    are_attributes = any(map(_has_attributes, by_id.values()))
    labels: dict[str, Mapping[Any, Any]] = {}
    for id_, label in by_id.items():
        if _has_attributes(label):
            labels[id_] = label
        elif are_attributes and not label:
            labels[id_] = {}
        else:
            labels[id_] = {ATTRIBUTE: label}
    return labels


def _has_attributes(label: Any) -> bool:
    """Return whether a label is a dict of attributes, and not of groups with weights."""
    return isinstance(label, Mapping) and any(
        isinstance(value, bool) or not isinstance(value, int | float | np.number)
        for value in label.values()
    )


def _memberships(name: str, labels: Sequence[Any]) -> tuple[Attribute, Any]:
    """Return the attribute whose groups labels name, and the memberships, shape (n, G+1)."""
    keys = [repr([*weighted_values(label)]) for label in labels]
    distinct = dict(zip(keys, labels, strict=True))
    groups: set[str] = set()
    for label in distinct.values():
        groups.update(map(as_name, values_of(label)))
    try:
        attribute = Attribute(name=name, field=name, groups=tuple(sorted(groups - {UNKNOWN})))
        memberships = {key: attribute.membership(label) for key, label in distinct.items()}
    except ValueError as error:
        reason = one_line(error)
        if isinstance(error, ValidationError):
            _, reason = first_problem(error)
        raise InputError(f"The groups of '{one_line(name)}' are wrong: {reason}.") from None
    return attribute, with_unknown([memberships[key] for key in keys])
