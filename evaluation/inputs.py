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
        there_is = f"There is no file {one_line(qrels)}"
        try:
            datasets = library("ir_datasets", f"{there_is}. A dataset of that id")
            qrels = datasets.load(str(qrels))
        except KeyError:
            raise InputError(f"{there_is}, and no ir_datasets dataset has that id.") from None
    if hasattr(qrels, "qrels_iter"):
        qrels = list(qrels.qrels_iter())
    wanted = f"a whole number of at most {HIGHEST_GRADE:,}"
    found: dict[str, dict[str, int]] = {}
    for query, documents in _by_query(qrels, "relevance", "judgements").items():
        of = f"for '{one_line(query)}'"
        if not isinstance(documents, Mapping):
            raise InputError(f"The judgements {of} are not a dict from document to grade.")
        own = _by_id(documents)
        grades = _numbers(own.values(), f"grade {of}", wanted, _is_grade)
        found[query] = dict(zip(own, grades.astype(int).tolist(), strict=True))
    return found


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
        is_file = path.suffix not in (".yaml", ".yml") and path.exists()
        groups = find_corpus(path) if is_file else str(groups)
    if isinstance(groups, Corpus):
        return scan_corpus(groups, ids)
    if isinstance(groups, str | Source):
        return run_blocking(_asked(groups, ids))
    labels = _labels(groups)
    names = dict.fromkeys(name for own in labels.values() for name in own)
    read = [_memberships(str(it), [own.get(it) for own in labels.values()]) for it in names]
    schema = Schema(attributes={attribute.name: attribute for attribute, _ in read})
    arrays = {attribute.name: array for attribute, array in read}
    rows = {id_: row for row, id_ in enumerate(labels)}
    shares = {name: array.mean(axis=0) for name, array in arrays.items()}
    return Groups(schema, rows, arrays, shares)


async def _asked(source: str | Source, ids: Collection[str]) -> Groups:
    from fairqr.retrieval.sources.catalog import Catalog

    async with aclosing(await Catalog().resolve(source)) as engine:
        return await scan_engine(engine, ids)


def _ranking(query: str, documents: Any, ties: Ties) -> Ranking:
    """Return the documents in order."""
    of = f"for '{one_line(query)}'"
    if isinstance(documents, Mapping):
        own = _by_id(documents)
        scores = _numbers(own.values(), f"score {of}", "a finite number", np.isfinite)
        ids = list(own)
        order = best_positions(ids, scores, descending=ties == "trec_eval")
        return Ranking([ids[place] for place in order.tolist()], scores[order].tolist())
    if not isinstance(documents, Sequence) or isinstance(documents, str):
        raise _of_other_type(f"ranking {of}", documents)
    ids = [_id(it) for it in documents]
    if len(set(ids)) < len(ids):
        raise InputError(f"The ranking {of} has a document twice; keep one.")
    return Ranking(ids, [float(-place) for place in range(len(ids))])


def _numbers(
    given: Collection[Any], what: str, wanted: str, fits: Callable[[FloatArray], Any]
) -> FloatArray:
    """Return numbers, all of which must fit."""
    try:
        found = np.array([*given])
    except ValueError:  # lists of several lengths
        found = np.array(None)
    is_known = found.dtype.kind in "biuf" and found.ndim == 1
    # Half precision holds no number as large as some limits.
    if not is_known or not fits(found := found.astype(np.float64)).all():
        raise InputError(f"Each {what} must be {wanted}.")
    return found


def _by_id(given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return what is given by ids as text; 1 and "1" are the same id."""
    if set(map(type, given)) <= {str}:
        return dict(given)
    found: dict[str, Any] = {}
    for id_, value in given.items():
        if (text := _id(id_)) in found:
            raise InputError(f"The id '{text}' is there as a number and as text; keep one.")
        found[text] = value
    return found


def _id(value: Any) -> str:
    if isinstance(value, float | np.floating) and value.is_integer():  # as pandas has it
        value = int(value)
    if isinstance(value, str | int | np.integer) and not isinstance(value, bool):
        return str(value)
    raise InputError(f"An id must be text or a whole number, not {one_line(repr(value), 60)}.")


def _by_query(given: Any, value: str, what: str) -> dict[str, Any]:
    """Return what is given by query; rows of a data frame, or records, as dicts by document."""
    if isinstance(given, Mapping):
        return _by_id(given)
    if not hasattr(given, "columns"):
        if not isinstance(given, Iterable):
            raise _of_other_type(what, given)
        given = library("pandas", "A list of records").DataFrame([*given])
    names = ["query_id", "doc_id", value]
    frame = given[[_column(given, name, what) for name in names]].set_axis(names, axis=1)
    for query, document, _ in frame[frame.duplicated(names[:2])].itertuples(index=False):
        twice = f"the document '{one_line(document)}' twice for '{one_line(query)}'"
        raise InputError(f"The {what} has {twice}; keep one.")
    found: dict[Any, dict[Any, Any]] = {}
    for query, document, number in zip(*(frame[name].tolist() for name in names), strict=True):
        found.setdefault(query, {})[document] = number
    return _by_id(found)


def _of_other_type(what: str, given: Any) -> InputError:
    kind = type(given).__name__
    return InputError(
        f"The {what} cannot be of type {kind}; help(fairqr.evaluate) lists the forms."
    )


def _column(frame: Any, name: str, what: str) -> Any:
    """Return what a data frame calls a column, which it must have once."""
    there = list(frame.columns)
    names = [column_name(column) for column in there]
    for known in [name, *COLUMNS[FIELDS.get(name, name)]]:
        if names.count(known) == 1:
            return there[names.index(known)]
    raise InputError(
        f"The data frame of the {what} needs the column {name}, once; it has "
        f"{', '.join(map(str, there)) or 'none'}."
    )


def _labels(groups: Any) -> dict[str, Mapping[Any, Any]]:
    """Return the label of each document by attribute."""
    if hasattr(groups, "columns"):
        frame = groups.set_index(_column(groups, "doc_id", "groups"))
        if not frame.index.is_unique:
            twice = one_line(frame.index[frame.index.duplicated()][0])
            raise InputError(f"The groups have the document '{twice}' in several rows; keep one.")
        return _by_id(frame.astype(object).mask(frame.isna(), None).to_dict(orient="index"))
    if not isinstance(groups, Mapping):
        raise _of_other_type("groups", groups)
    own = _by_id(groups)
    named = any(map(_has_attributes, own.values()))
    plain = {id_: {} if named and not label else {ATTRIBUTE: label} for id_, label in own.items()}
    return plain | {id_: label for id_, label in own.items() if _has_attributes(label)}


def _has_attributes(label: Any) -> bool:
    """Return whether a label is a dict of attributes, and not of groups with weights."""
    return isinstance(label, Mapping) and any(
        isinstance(value, bool) or not isinstance(value, int | float | np.number)
        for value in label.values()
    )


def _memberships(name: str, given: Sequence[Any]) -> tuple[Attribute, Any]:
    """Return the attribute whose groups these labels name, and the memberships, shape (n, G+1)."""
    keys = [repr([*weighted_values(label)]) for label in given]
    labels = dict(zip(keys, given, strict=True))
    named = {as_name(value) for label in labels.values() for value in values_of(label)}
    try:
        attribute = Attribute(name=name, field=name, groups=tuple(sorted(named - {UNKNOWN})))
        known = {key: attribute.membership(label) for key, label in labels.items()}
    except ValueError as error:
        why = first_problem(error)[1] if isinstance(error, ValidationError) else one_line(error)
        raise InputError(f"The groups of '{one_line(name)}' are wrong: {why}.") from None
    return attribute, with_unknown([known[key] for key in keys])
