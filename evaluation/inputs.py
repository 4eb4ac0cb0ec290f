"""Runs, judgements and groups as researchers hold them: dicts, data frames, files, ir_datasets."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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

COLUMNS = {"qid": "query_id", "docno": "doc_id", "rel": "relevance", "label": "relevance"}
"""Other names of columns, such as PyTerrier's; of several for the same, the last is taken."""

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
    for query, documents in _by_query(run, "score", "the run", RUN_FORMS).items():
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
    found: dict[str, dict[str, int]] = {}
    for query, documents in _by_query(qrels, "relevance", "the judgements", QRELS_FORMS).items():
        if not isinstance(documents, Mapping):
            raise InputError(
                f"The judgements of '{one_line(query)}' are not a dict from document to grade; "
                f"give {QRELS_FORMS}."
            )
        grades: dict[str, Any] = dict(zip(_ids(documents), documents.values(), strict=True))
        for document, grade in grades.items():
            if type(grade) is not int or abs(grade) > HIGHEST_GRADE:
                grades[document] = _grade(query, document, grade)
        found[query] = grades
    return found


def _grade(query: str, document: str, grade: Any) -> int:
    is_whole = isinstance(grade, int | np.integer) or (
        isinstance(grade, float | np.floating) and bool(np.isfinite(grade)) and grade == int(grade)
    )
    if is_whole and abs(whole := int(grade)) <= HIGHEST_GRADE:
        return whole
    wanted = f"be at most {HIGHEST_GRADE:,}" if is_whole else "be a whole number"
    raise InputError(
        f"The grade of '{one_line(document)}' for '{one_line(query)}' must {wanted}, "
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
    attributes, arrays = {}, {}
    for name, labels in by_attribute.items():
        attributes[name], arrays[name] = _memberships(name, labels)
    rows = {id_: row for row, id_ in enumerate(documents)}
    shares = {name: array.mean(axis=0) for name, array in arrays.items()}
    return Groups(Labels(Schema(attributes=attributes), rows, arrays), len(rows), shares)


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
    if set(map(type, ids)) <= {str}:
        return ids
    texts = [_id(id_, what) for id_ in ids]
    if isinstance(given, Mapping) and len(set(texts)) < len(texts):
        twice = next(text for text, count in Counter(texts).items() if count > 1)
        raise InputError(
            f"The {what} '{one_line(twice)}' is there twice, as a number and as text; keep one."
        )
    return texts


def _id(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | np.integer) and value is not True and value is not False:
        return str(value)
    raise InputError(
        f"The id of a {what} must be text or a whole number, not {one_line(repr(value), 60)}."
    )


def _by_query(given: Any, value: str, what: str, forms: str) -> dict[str, Any]:
    """Return what is given by query; rows of a data frame, or records, as dicts by document."""
    if isinstance(given, Mapping):
        return dict(zip(_ids(given, "query"), given.values(), strict=True))
    names = ["query_id", "doc_id", value]
    frame = given
    if not _is_frame(given):
        wrong = f"{what[0].upper()}{what[1:]} cannot be of type {type(given).__name__}; give"
        records = list(given) if isinstance(given, Iterable) else [None]
        there = [it for it in (*names, *COLUMNS) if all(hasattr(record, it) for record in records)]
        if not {*names} <= {*there, *_usual_names(there, COLUMNS).values()}:
            raise InputError(f"{wrong} {forms}.")
        cells = [[getattr(record, name) for name in there] for record in records]
        frame = library("pandas", "A list of records").DataFrame(cells, columns=there, dtype=object)
    frame = _renamed(frame, what, COLUMNS)
    if not {*names} <= {*frame.columns}:
        raise InputError(
            f"The data frame of {what} needs the columns {', '.join(names)}; it "
            f"has {', '.join(map(str, given.columns)) or 'none'}."
        )
    if (twice := frame.duplicated(names[:2])).any():
        row = int(twice.argmax())
        query, document = frame[names[:2]].iloc[row]
        raise InputError(
            f"In row {row + 1} of {what} the document '{one_line(document)}' appears a "
            f"second time for '{one_line(query)}'; keep one."
        )
    found: dict[Any, dict[Any, Any]] = {}
    for query, document, number in zip(*(frame[name].tolist() for name in names), strict=True):
        found.setdefault(query, {})[document] = number
    return dict(zip(_ids(found, "query"), found.values(), strict=True))


def _is_frame(given: Any) -> bool:
    return type(given).__module__.partition(".")[0] == "pandas" and hasattr(given, "columns")


def _usual_names(there: Collection[Any], others: Mapping[str, str]) -> dict[str, str]:
    """Return the usual names of columns by the names that they have."""
    found = {usual: other for other, usual in others.items() if other in there}
    return {other: usual for usual, other in found.items() if usual not in there}


def _renamed(frame: Any, what: str, others: Mapping[str, str]) -> Any:
    """Return a data frame with the usual names of columns, which must be distinct."""
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise InputError(
            f"The data frame of {what} has the column '{one_line(twice)}' twice; keep one."
        )
    return frame.rename(columns=_usual_names(list(frame.columns), others))


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
    """Return the documents of a data frame, and their labels by attribute."""
    # Any other column is an attribute, whatever its name.
    frame = _renamed(given, "the groups", {"docno": "doc_id"})
    attributes = [name for name in frame.columns if name != "doc_id"]
    if len(attributes) in (0, len(frame.columns)):
        raise InputError(
            "The data frame of the groups needs the column doc_id and one for each attribute; it "
            f"has {', '.join(map(str, given.columns)) or 'none'}."
        )
    documents = frame["doc_id"]
    if not documents.is_unique:
        twice = documents[documents.duplicated()].iloc[0]
        raise InputError(
            f"The data frame of the groups has the document '{one_line(twice)}' in several rows; "
            "keep one, with a list of groups where there are several."
        )
    labels = frame[attributes].astype(object).mask(frame[attributes].isna(), None)
    ids = _ids(dict.fromkeys(documents.tolist()))
    return ids, {str(name): labels[name].tolist() for name in attributes}


def _labels_of_dict(groups: Mapping[Any, Any]) -> tuple[list[str], dict[str, list[Any]]]:
    """Return the documents of a dict, and their labels by attribute."""
    documents, labels = _ids(groups), list(groups.values())
    if not any(map(_has_attributes, labels)):
        return documents, {ATTRIBUTE: labels}
    for id_, own in zip(documents, labels, strict=True):
        if own and not _has_attributes(own):
            raise InputError(
                f"Some documents have attributes, but '{one_line(id_)}' has none; give each "
                "document a dict such as {'gender': 'female'}."
            )
    names = dict.fromkeys(name for own in labels for name in own or ())
    return documents, {str(name): [(own or {}).get(name) for own in labels] for name in names}


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
    keys = [label if isinstance(label, str) else (type(label), repr(label)) for label in labels]
    kinds = dict(zip(keys, labels, strict=True))
    codes = {key: code for code, key in enumerate(kinds)}
    rows = np.fromiter(map(codes.__getitem__, keys), np.intp, len(keys))
    named = sorted({group for label in kinds.values() for group in _groups_in(label)} - {UNKNOWN})
    if not named:
        raise InputError(f"No document has a group of '{one_line(name)}'.")
    try:
        attribute = Attribute(name=name, field=name, groups=tuple(named))
        known = np.array([attribute.membership(label) for label in kinds.values()])
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
