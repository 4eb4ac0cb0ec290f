"""Runs, judgements and groups as researchers hold them: dicts, data frames, files, ir_datasets."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.base.extras import library
from fairqr.base.loops import run_blocking
from fairqr.evaluation.collections.labels import (
    Groups,
    Labels,
    scan_corpus,
    scan_engine,
    with_unknown,
)
from fairqr.evaluation.qrels import HIGHEST_GRADE, Qrels, read_qrels
from fairqr.retrieval.fairness.ranking import OrderedView, Ranking, best_positions
from fairqr.retrieval.sources.corpus import BUILT_IN, Corpus, find_corpus
from fairqr.retrieval.sources.runs import TIES, SystemRun, Ties, check_ties, read_run, refuse_ties
from fairqr.retrieval.sources.schema import NAME, UNKNOWN, Attribute, Schema, as_text
from fairqr.retrieval.sources.source import Source

QUERY, DOCUMENT = ("query_id", "qid"), ("doc_id", "docno")
SCORE, GRADE = ("score",), ("relevance", "label", "rel")
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
            order already. Also an iterable of records with query_id, doc_id and score.
        name: The name of a run that has none.
        ties: How to order equal scores; see :func:`fairqr.retrieval.sources.runs.read_run`. Only a
        file has
            ranks, so elsewhere ``rank`` orders them by id.

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
    by_query = run if isinstance(run, Mapping) else _records(run, SCORE, "the run", RUN_FORMS)
    rankings: dict[str, list[Ranking]] = {}
    tied = 0
    for query, documents in zip(_ids(by_query, "query"), by_query.values(), strict=True):
        ranking, equal = _ranking(query, documents, ties)
        if equal and ties == "error":
            refuse_ties("The run", query, equal)
        tied += equal
        rankings[query] = [ranking]
    return SystemRun(name, rankings, tied, TIES[ties])


def as_qrels(qrels: Any) -> Qrels | None:
    """Return judgements.

    Args:
        qrels: One of the forms above, an ir_datasets dataset, or an iterable of records with
            query_id, doc_id and relevance; None stays None.

    Raises:
        InputError: It has another form, or a grade is not a whole number.
    """
    if qrels is None:
        return None
    if isinstance(qrels, str | Path):
        return read_qrels(Path(qrels)) if Path(qrels).exists() else _dataset(str(qrels))
    if hasattr(qrels, "qrels_iter"):
        try:
            qrels = list(qrels.qrels_iter())
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"ir_datasets cannot give the judgements: {one_line(error)}; see ir-datasets.com."
            ) from None
    by_query = (
        qrels
        if isinstance(qrels, Mapping)
        else _records(qrels, GRADE, "the judgements", QRELS_FORMS)
    )
    found: dict[str, dict[str, int]] = {}
    for query, documents in zip(_ids(by_query, "query"), by_query.values(), strict=True):
        if not isinstance(documents, Mapping):
            raise InputError(
                f"The judgements of '{one_line(query)}' are not a dict from document to grade; "
                f"give {QRELS_FORMS}."
            )
        grades: dict[str, Any] = dict(zip(_ids(documents), documents.values(), strict=True))
        found[query] = grades
        if not _types(grades.values()) <= {int}:
            for document, grade in grades.items():
                if not isinstance(grade, int | np.integer) and not (
                    isinstance(grade, float | np.floating) and grade.is_integer()
                ):
                    raise _wrong_grade(query, document, grade, "must be a whole number")
                grades[document] = int(grade)
        if max(map(abs, grades.values()), default=0) > HIGHEST_GRADE:
            odd = max(grades, key=lambda document: abs(grades[document]))
            raise _wrong_grade(query, odd, grades[odd], f"must be at most {HIGHEST_GRADE:,}")
    return found


def _wrong_grade(query: str, document: str, grade: Any, wanted: str) -> InputError:
    return InputError(
        f"The grade of '{one_line(document)}' for '{one_line(query)}' {wanted}, "
        f"not {one_line(repr(grade), 60)}."
    )


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
    if isinstance(groups, Corpus):
        return scan_corpus(groups, ids)
    if isinstance(groups, str | Path):
        path = Path(BUILT_IN.get(str(groups), groups))
        if path.suffix not in (".yaml", ".yml") and path.exists():
            return scan_corpus(find_corpus(path), ids)
    if isinstance(groups, str | Path | Source):
        return run_blocking(_asked(groups if isinstance(groups, Source) else str(groups), ids))
    if _is_frame(groups):
        return _groups_of(*_labels_of_frame(groups))
    if not isinstance(groups, Mapping):
        raise InputError(f"The groups are of type {type(groups).__name__}; give {GROUPS_FORMS}.")
    return _groups_of(groups, _by_attribute(groups))


async def _asked(source: str | Source, ids: Collection[str]) -> Groups:
    from fairqr.retrieval.sources.catalog import Catalog

    engine = await Catalog().resolve(source)
    try:
        return await scan_engine(engine, ids)
    finally:
        await engine.aclose()


def _ranking(query: str, documents: Any, ties: Ties) -> tuple[Ranking, int]:
    """Return the documents in order, and how many have the same score as the one before them."""
    if isinstance(documents, Mapping):
        ids, scores = _ids(documents), _scores(query, list(documents.values()))
    elif isinstance(documents, Sequence) and not isinstance(documents, str):
        ids = _ids(documents)
        if len(set(ids)) < len(ids):
            raise InputError(f"The ranking of '{one_line(query)}' has a document twice; keep one.")
        return Ranking(ids, [float(-place) for place in range(len(ids))]), 0
    else:
        raise InputError(
            f"The ranking of '{one_line(query)}' is of type {type(documents).__name__}; give a "
            "dict from document to score, or a list of documents, best first."
        )
    order = best_positions(ids, scores, descending=ties == "trec_eval")
    ordered = scores[order]
    equal = int((ordered[1:] == ordered[:-1]).sum())
    # Most measures read the first ranks alone, so that all of them are not put in order here.
    return Ranking(OrderedView(ids, order), array("d", ordered.tobytes())), equal


def _scores(query: Any, given: list[Any]) -> Any:
    try:
        scores = np.array(given)
        usual = scores.ndim == 1 and (scores.dtype.kind in "iuf" or not given)
        if usual and np.isfinite(scores := scores.astype(np.float64)).all():
            return scores
    except ValueError:
        pass
    odd = next(score for score in given if not _is_finite_number(score))
    raise InputError(
        f"A score of '{one_line(query)}' is not a finite number: {one_line(repr(odd), 60)}."
    )


def _is_finite_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.ndim == 0 and array.dtype.kind in "iuf" and bool(np.isfinite(array))


def _ids(given: Iterable[Any], what: str = "document") -> list[str]:
    """Return ids as text; 1 and "1" are the same id."""
    ids = list(given)
    if _types(ids) <= {str}:
        return ids
    texts = [_id(id_, what) for id_ in ids]
    if isinstance(given, Mapping) and len(set(texts)) < len(texts):
        twice = next(text for text, count in Counter(texts).items() if count > 1)
        raise InputError(
            f"The {what} '{one_line(twice)}' is there twice, as a number and as text; keep one."
        )
    return texts


def _types(values: Iterable[Any]) -> set[type]:
    return set(map(type, values))


def _id(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and value is not True and value is not False:
        return str(value)
    raise InputError(
        f"The id of a {what} must be text or a whole number, not {one_line(repr(value), 60)}."
    )


def _records(given: Any, value: Sequence[str], what: str, forms: str) -> dict[Any, dict[Any, Any]]:
    """Gather the rows of a data frame, or named tuples, by query and document."""
    found: dict[Any, dict[Any, Any]] = {}
    for row, (query, document, number) in enumerate(_rows(given, value, what, forms), start=1):
        of_query = found.setdefault(query, {})
        if document in of_query:
            raise InputError(
                f"In row {row} of {what} the document '{one_line(document)}' appears a "
                f"second time for '{one_line(query)}'; keep one."
            )
        of_query[document] = number
    return found


def _rows(given: Any, value: Sequence[str], what: str, forms: str) -> Iterator[tuple[Any, ...]]:
    wrong = f"{what[0].upper()}{what[1:]} cannot be of type {type(given).__name__}; give {forms}."
    names = (QUERY, DOCUMENT, value)
    if _is_frame(given):
        there = _columns_of(given, what)
        columns = [next((name for name in choices if name in there), None) for choices in names]
        if None in columns:
            raise InputError(
                f"The data frame of {what} needs the columns {', '.join(n[0] for n in names)}; it "
                f"has {', '.join(map(str, there)) or 'none'}."
            )
        yield from zip(*(given[name].tolist() for name in columns), strict=True)
        return
    if not isinstance(given, Iterable) or isinstance(given, bytes):
        raise InputError(wrong)
    for record in given:
        cells = [
            next((getattr(record, name) for name in choices if hasattr(record, name)), None)
            for choices in names
        ]
        if None in cells:
            raise InputError(wrong)
        yield tuple(cells)


def _is_frame(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns")


def _columns_of(frame: Any, what: str) -> list[Any]:
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InputError(
            f"The data frame of {what} has the column '{one_line(twice)}' twice; keep one."
        )
    return list(frame.columns)


def _dataset(name: str) -> Qrels:
    """Return the judgements of an ir_datasets dataset."""
    datasets = library("ir_datasets", f"There is no file {name}. A dataset of that id")
    try:
        dataset = datasets.load(name)
    except KeyError:
        raise InputError(
            f"There is no file {name}, and no ir_datasets dataset has that id."
        ) from None
    if not dataset.has_qrels():
        raise InputError(f"The ir_datasets dataset '{one_line(name)}' has no judgements.")
    return as_qrels(dataset) or {}


def _labels_of_frame(frame: Any) -> tuple[dict[Any, None], dict[str, list[Any]]]:
    """Return the documents of a data frame, and their labels by attribute."""
    there = _columns_of(frame, "the groups")
    key = next((name for name in DOCUMENT if name in there), None)
    attributes = [name for name in there if name != key]
    if key is None or not attributes:
        raise InputError(
            "The data frame of the groups needs the column doc_id and one for each attribute; it "
            f"has {', '.join(map(str, there)) or 'none'}."
        )
    documents = dict.fromkeys(frame[key].tolist())
    if len(documents) < len(frame):
        twice = frame[key][frame[key].duplicated()].iloc[0]
        raise InputError(
            f"The data frame of the groups has the document '{one_line(twice)}' in several rows; "
            "keep one, with a list of groups where there are several."
        )
    missing = {name: frame[name].isna() for name in attributes}
    return documents, {
        str(name): frame[name].astype(object).mask(missing[name], None).tolist()
        for name in attributes
    }


def _by_attribute(groups: Mapping[Any, Any]) -> dict[str, list[Any]]:
    """Return the labels in a dict by attribute."""
    if _types(groups.values()) <= {str} or not any(map(_has_attributes, groups.values())):
        return {ATTRIBUTE: list(groups.values())}
    for id_, labels in groups.items():
        if labels and not _has_attributes(labels):
            raise InputError(
                f"Some documents have attributes, but '{one_line(id_)}' has none; give each "
                "document a dict such as {'gender': 'female'}."
            )
    names = dict.fromkeys(name for labels in groups.values() for name in labels or ())
    return {str(name): [(labels or {}).get(name) for labels in groups.values()] for name in names}


def _groups_of(documents: Mapping[Any, Any], by_attribute: Mapping[str, Sequence[Any]]) -> Groups:
    """Return the groups of documents, whose labels stand in the same order."""
    ids = _ids(documents)
    attributes, arrays = {}, {}
    for name, labels in by_attribute.items():
        attributes[name], arrays[name] = _memberships(name, labels)
    schema = Schema(attributes=attributes)
    shares = {name: array.mean(axis=0) for name, array in arrays.items()}
    rows = dict(zip(ids, range(len(ids)), strict=True))
    return Groups(Labels(schema, rows, arrays), len(ids), shares)


def _memberships(name: str, labels: Sequence[Any]) -> tuple[Attribute, Any]:
    """Return the attribute whose groups these labels name, and the memberships, shape (n, G+1)."""
    if not NAME.search(name):
        raise InputError(
            f"The attribute '{one_line(name)}' cannot be called so; write its name with letters, "
            "digits, _ and -, such as birth_year."
        )
    keys: Sequence[Any] = labels
    if not _types(labels) <= {str}:
        labels = list(map(_label, labels))
        keys = [(type(label), repr(label)) for label in labels]
    first = dict(zip(reversed(keys), reversed(labels), strict=True))
    codes = dict(zip(first, range(len(first)), strict=True))
    kinds = list(first.values())
    rows = np.fromiter(map(codes.__getitem__, keys), np.intp, len(keys))
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
    if isinstance(given, np.ndarray):
        given = given.tolist()
    if isinstance(given, list | tuple | set | frozenset):
        return [group for group in map(_label, given) if group is not None]
    return given


def _groups_in(label: Any) -> Iterable[str]:
    if label is None or (isinstance(label, str) and not label):
        return ()
    values = label if isinstance(label, Iterable) and not isinstance(label, str) else (label,)
    return map(as_text, values)


def _has_attributes(label: Any) -> bool:
    """Return whether a label is a dict of attributes, and not of groups with weights."""
    return isinstance(label, Mapping) and any(
        isinstance(value, bool) or not isinstance(value, int | float | np.number)
        for value in label.values()
    )
