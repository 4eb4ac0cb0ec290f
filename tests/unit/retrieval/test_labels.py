"""Labels of files beside a source, and of fields, are those that a dictionary would give."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import threading
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairqr.base.errors import InputError, SourceError
from fairqr.retrieval.engines.report import remarks_on_labels
from fairqr.retrieval.sources.label_files import open_label_store
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Attribute
from tests.patience import PATIENCE

GROUPS = ("Asia", "Europe", "Africa")
ORIGIN = Attribute(name="origin", labels="origins.csv", groups=GROUPS)
IDS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs")), min_size=1, max_size=6)
VALUES = st.sampled_from([*GROUPS, "Atlantis"])
LABELS = st.one_of(
    st.none(),
    VALUES,
    st.lists(VALUES, max_size=4),
    st.dictionaries(VALUES, st.sampled_from([0, 0.5, 1, 3]), max_size=3),
)
TIMES = itertools.count()
SHARED_FOLDER = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60
)


async def opened(
    folder: Path, attribute: Attribute = ORIGIN, content: str | bytes | None = None, **options: Any
) -> LabelReader:
    """Write the file of an attribute, and open it."""
    if content is not None:
        data = content.encode() if isinstance(content, str) else content
        (folder / attribute.labels).write_bytes(data)
    return await LabelReader.open({"origin": attribute}, folder, store=folder / "kept", **options)


def rows(labels: LabelReader, ids: Sequence[str]) -> list[list[float]]:
    return labels.memberships(ids, {})["origin"].tolist()  # type: ignore[no-any-return]


def built(folder: Path, name: str, attribute: Attribute, ids: Sequence[str]) -> np.ndarray:
    os.utime(folder / name, ns=(1, next(TIMES)))
    store = open_label_store(folder / name, attribute, folder / "kept", None, threading.Event())
    return store.memberships(ids)


@SHARED_FOLDER
@given(
    labels_by_id=st.dictionaries(IDS, LABELS, min_size=1),
    others=st.lists(IDS),
    policy=st.booleans(),
)
def test_json_lines_give_what_a_dictionary_gives(
    tmp_path: Path, labels_by_id: Mapping[str, Any], others: Sequence[str], policy: bool
) -> None:
    attribute = ORIGIN.model_copy(update={"unknown": "group" if policy else "exclude"})
    ids = [*others, *labels_by_id, *others]
    expected = [attribute.membership(labels_by_id.get(id_), strict=False) for id_ in ids]
    lines = [json.dumps({"id": id_, "group": label}) for id_, label in labels_by_id.items()]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    members = built(tmp_path, "a.jsonl", attribute, ids)
    np.testing.assert_array_equal(members, np.array(expected).reshape(members.shape))


@SHARED_FOLDER
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), VALUES, st.sampled_from([0, 0.25, 1, 3])), min_size=1
    )
)
def test_rows_of_one_document_share_it_by_weight(
    tmp_path: Path, rows_held: list[tuple[str, str, float]]
) -> None:
    lines = ["id,group,weight", *(f"{id_},{value},{weight}" for id_, value, weight in rows_held)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    weights: dict[str, dict[str, float]] = {}
    for id_, value, weight in rows_held:
        of_id = weights.setdefault(id_, {})
        of_id[value] = of_id.get(value, 0) + weight
    expected = [ORIGIN.membership(weights.get(id_), strict=False) for id_ in "abcdefg"]
    np.testing.assert_allclose(built(tmp_path, "a.csv", ORIGIN, "abcdefg"), expected)


async def test_groups_that_only_the_file_names_are_sorted(
    tmp_path: Path,
) -> None:
    attribute = Attribute(name="origin", labels="o.csv", unknown="group")
    labels = await opened(tmp_path, attribute, "id,group\n1,b\n2,a\n3,\n4,unknown\n")
    assert labels.schema.attribute("origin").universe == ("a", "b", "unknown")
    assert rows(labels, [*"12345", "half \ud800"]) == [[0, 1, 0], [1, 0, 0], *([[0, 0, 1]] * 4)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("o.csv", "id,origin\n1,1.0\n2,2.0\n3,\n"),
        ("o.csv", "id,origin\n1,1\n2,2.0\n3,\n4,1.0\n5,2\n"),
        ("o.csv", 'id,origin\n1,"1 "\n2,2.00\n3," "\n4,1\n'),
        ("o.jsonl", '{"id": 1, "group": 1.0}\n{"id": 2, "group": ["2.0", 2]}\n'),
    ],
)
async def test_groups_that_are_whole_numbers_are_named_without_zeros(
    tmp_path: Path, name: str, content: str
) -> None:
    labels = await opened(tmp_path, Attribute(name="origin", labels=name), content)
    assert labels.schema.attribute("origin").groups == ("1", "2")

    expected = [[1, 0], [0, 1], [0, 0]]
    assert rows(labels, "123") == expected
    if "4" in labels.in_files("4"):
        assert rows(labels, "4") == [[1, 0]]


async def test_groups_that_are_other_numbers_keep_their_names(tmp_path: Path) -> None:
    attribute = Attribute(name="origin", labels="o.csv")
    labels = await opened(tmp_path, attribute, "id,origin\n1,1.5\n2,v2.0\n3,1.0.0\n")
    assert labels.schema.attribute("origin").groups == ("1.0.0", "1.5", "v2.0")


async def test_values_of_the_file_are_mapped_to_groups(tmp_path: Path) -> None:
    ranges = {"young": {"gte": 1980}, "old": {"lt": 1980}}
    attribute = Attribute.model_validate({"name": "origin", "labels": "o.csv", "groups": ranges})
    labels = await opened(tmp_path, attribute, "id,group\n1,1990\n2, 1950-01-02\n3,never\n")

    assert rows(labels, "123") == [[1, 0], [0, 1], [0, 0]]

    (report,) = labels.reports({}, ["1", "2", "3", "not there"])
    assert (report.documents, report.labelled, report.origin) == (4, 2, "o.csv")
    assert [(v.value, v.documents) for v in report.without_group] == [("never", 1)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("o.CSV", '\ufeffid, group\n"a,1",Asia\n\n\'b"\',Europe\n"a,1",Asia\n'),
        ("o.csv.gz", gzip.compress(b'"",id,group\n0,"a,1",Asia\n1,\'b"\',Europe\n')),
        ("o.csv", 'group,id,\nAsia,"a,1",0\nEurope,\'b"\',1\n'),
        ("o.jsonl", '{"id": "a,1", "GROUP": "Asia"}\n{"id": "\'b\\"\'", "origin": ["Europe"]}'),
    ],
    ids=["byte order mark and a row twice", "packed by pandas", "last column", "objects"],
)
async def test_labels_may_be_written_in_several_ways(
    tmp_path: Path, name: str, content: str | bytes
) -> None:
    labels = await opened(tmp_path, ORIGIN.model_copy(update={"labels": name}), content)

    assert rows(labels, ["a,1", "'b\"'", "a"]) == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert labels.in_files(["a", "a,1"]) == {"a,1"}


OTHER_IDS = "id,group\nzz1,Asia\nzz2,Europe\n"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (OTHER_IDS, "has no label of the checked documents; correct the field or the"),
        (
            OTHER_IDS
            + "".join(f"d{number},asia\n" for number in range(10))
            + "".join(f"d{number},EU\n" for number in range(10, 20)),
            "contains EU, asia, none of",
        ),
    ],
    ids=["ids", "values"],
)
async def test_a_file_that_has_none_of_the_documents_is_refused(
    tmp_path: Path, content: str, complaint: str
) -> None:
    """Most likely another column holds the ids, or the values belong to no group."""
    labels = await opened(tmp_path, content=content)
    reports = labels.reports({}, [f"d{number}" for number in range(20)])

    with pytest.raises(SourceError, match=complaint):
        list(remarks_on_labels(reports))


NEEDED = "line 2: it needs an 'id' and a 'group' (or 'origin')"
WEIGHT = '{"id": "a", "group": "Asia"}\n{"id": "a", "group": "Europe", "weight": 1}'


@pytest.mark.promise("labels")
@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("o.csv", "", "have no rows; write one for each document"),
        ("o.csv", "id,one,two\na,b,c\n", NEEDED),
        ("o.csv", "id,group\na,Asia\nb\n", "line 3: it needs an 'id' and a 'group'"),
        ("o.csv", "id,group\na,x\nb,x\nb,Asia\n", "'b' several groups in lines 3 to 4"),
        ("o.csv", "id,group,weight\na,Asia,1\nb,Asia\n", "line 3: it needs a 'weight' like the"),
        ("o.jsonl", WEIGHT, "line 2: it needs a 'weight' like the other lines"),
        ("o.xlsx", b"", "must be a .csv, .tsv or .jsonl file (each may be .gz)."),
    ],
    ids=["empty", "columns", "short row", "groups", "cell", "weight", "format"],
)
async def test_a_file_that_is_wrong_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: str | bytes, sentence: str
) -> None:
    """A wrong file of labels is refused in one sentence."""
    attribute = ORIGIN.model_copy(update={"labels": name})

    with pytest.raises(InputError) as refused:
        await opened(tmp_path, attribute, content)
    assert sentence in str(refused.value)
    assert str(tmp_path / name) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not [*(tmp_path / "kept").glob("*-*")]


@pytest.mark.parametrize(
    ("groups", "population", "sentence"),
    [
        ("x", None, "have 1 groups for origin, which needs at"),
        ("xy", {"z": 1.0}, "is wrong: population names 'z'"),
        (range(1200), None, "have more than 1,000 groups for origin; list its groups"),
    ],
    ids=["one", "population", "many"],
)
async def test_groups_of_the_file_that_do_not_fit_are_refused(
    tmp_path: Path, groups: Any, population: Any, sentence: str
) -> None:
    attribute = Attribute(name="origin", labels="o.csv", population=population)
    with pytest.raises(SourceError) as refused:
        await opened(tmp_path, attribute, "".join(["id,group\n", *(f"{n},{n}\n" for n in groups)]))
    assert sentence in str(refused.value)


async def test_a_file_is_read_again_only_where_it_has_changed(tmp_path: Path) -> None:
    """Several who open a new one at once read it once."""
    counts: list[int] = []
    (tmp_path / "origins.csv").write_text("id,group\na,Asia\n")
    await asyncio.gather(*(opened(tmp_path, progress=counts.append) for _ in range(4)))

    assert counts == [1]

    labels = await opened(tmp_path, content="id,group\na,Europe\nb,Asia\n", progress=counts.append)
    assert counts == [1, 2]
    assert rows(labels, ["a"]) == [[0, 1, 0]]
    assert len([*(tmp_path / "kept").glob("*-*")]) == 1


@pytest.mark.parametrize(
    ("name", "remaining"), [("about.json", 20), ("ids.npy", 129), ("codes.npy", 0)]
)
async def test_a_damaged_store_is_built_again(tmp_path: Path, name: str, remaining: int) -> None:
    await opened(tmp_path, content="id,group\na,Asia\n")
    (file,) = (tmp_path / "kept").glob(f"*-*/{name}")
    file.write_bytes(file.read_bytes()[:remaining])

    assert rows(await opened(tmp_path), ["a"]) == [[1, 0, 0]]


async def test_a_build_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    entered = asyncio.Event()
    release = threading.Event()

    def halt(_: int) -> None:
        loop.call_soon_threadsafe(entered.set)
        release.wait(PATIENCE)

    lines = "".join(f"{n},Asia\n" for n in range(25_000))
    waiting = asyncio.create_task(opened(tmp_path, ORIGIN, f"id,group\n{lines}", progress=halt))
    await entered.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    release.set()
    # Whoever comes next waits for the lock, and so for the end of that build.
    counts: list[int] = []
    labels = await opened(tmp_path, progress=counts.append)
    assert counts == [10_000, 20_000, 25_000]
    assert rows(labels, ["24999"]) == [[1, 0, 0]]


GENDER = Attribute.model_validate(
    {"name": "gender", "field": "sex", "groups": {"female": ["F", "1"], "male": ["M", "true"]}}
)


async def test_fields_are_read_beside_files_in_the_order_of_the_schema(tmp_path: Path) -> None:
    (tmp_path / "origins.csv").write_text("id,group\na,Asia\n")
    attributes = {"gender": GENDER, "origin": ORIGIN}
    labels = await LabelReader.open(attributes, tmp_path, store=tmp_path / "kept")

    assert labels.field_attributes == [GENDER]

    values = ["F", None, ["F", "M", "x", "M"], {"F": 1, "M": 3}, 1, True, "", "x"]
    members = labels.memberships("abcdefgh", {"gender": values})
    assert list(members) == ["gender", "origin"]

    halves = [[1, 0], [0, 0], [1 / 3, 1 / 3], [0.25, 0.75], [1, 0], [0, 1], [0, 0], [0, 0]]
    assert members["gender"].tolist() == halves
    assert members["origin"].tolist() == [[1, 0, 0], *([[0, 0, 0]] * 7)]

    nobody = labels.memberships([], {"gender": []})
    shapes = {name: members.shape for name, members in nobody.items()}
    assert shapes == {"gender": (0, 2), "origin": (0, 3)}

    report, _ = labels.reports({"gender": values}, "abcdefgh")
    assert (report.origin, report.documents, report.labelled) == ("sex", 8, 5)
    assert [(v.value, v.documents) for v in report.without_group] == [("x", 2)]


class Sex(str, Enum):  # noqa: UP042 - as programs of older Pythons have it
    """A label of a program."""

    FEMALE = "F"


F = [1, 0]
M = [0, 1]
UNKNOWN_LABEL = [0, 0]
FORMS_OF_F = [
    ["F", None],
    [["F"]],
    [[["F"]], []],
    ["F", ""],
    ("F",),
    {"F"},
    np.str_("F"),
    np.array(["F"]),
    np.array(["F", None], dtype=object),
    np.int64(1),
    np.float32(1.0),
    1.0,
    Decimal(1),
    [{"F": 1}],
    Sex.FEMALE,
    [Sex.FEMALE],
]
NO_LABELS = [
    [],
    [[]],
    [None],
    {},
    float("nan"),
    np.float64("nan"),
    {"F": "much"},
    {"F": -1},
    object(),
    b"F",
]


@pytest.mark.parametrize(
    ("label", "row"),
    [
        *((label, F) for label in FORMS_OF_F),
        *((label, M) for label in (np.bool_(True), np.array([True]), {"M": np.float64(2)})),
        *((label, [0.5, 0]) for label in (["F", {"name": "x"}], ["F", object()], ["F", b"F"])),
        *((label, UNKNOWN_LABEL) for label in NO_LABELS),
    ],
)
async def test_a_label_is_read_in_whatever_form_it_comes(
    tmp_path: Path, label: object, row: list[float]
) -> None:
    """What cannot be read is unknown for its document, and harms no other."""
    labels = await LabelReader.open({"gender": GENDER}, tmp_path, store=tmp_path / "kept")
    members = labels.memberships("ab", {"gender": [label, "M"]})
    (report, *_) = labels.reports({"gender": [label, "M"]}, "ab")

    assert members["gender"].tolist() == [row, M]
    is_labelled = any(row)
    assert report.labelled == (2 if is_labelled else 1)
