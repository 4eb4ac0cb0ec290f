"""Labels of files beside a source, and of fields, are those that a dictionary would give."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from fairqr.base.errors import InputError, SourceError
from fairqr.retrieval.sources import labels as labels_module
from fairqr.retrieval.sources.labels import LabelReader, open_label_store
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
    folder: Path, attribute: Attribute = ORIGIN, content: str | bytes | None = None, **how: Any
) -> LabelReader:
    """Write the file of an attribute, and open it."""
    if content is not None:
        data = content.encode() if isinstance(content, str) else content
        (folder / attribute.labels).write_bytes(data)
    return await LabelReader.open({"origin": attribute}, folder, store=folder / "kept", **how)


def rows(labels: LabelReader, ids: Sequence[str]) -> list[list[float]]:
    return labels.memberships(ids, {})["origin"].tolist()  # type: ignore[no-any-return]


def built(folder: Path, name: str, attribute: Attribute, ids: Sequence[str]) -> np.ndarray:
    (folder / name).touch()
    os.utime(folder / name, ns=(1, next(TIMES)))
    return open_label_store(folder / name, attribute, folder / "kept").memberships(ids)


@SHARED_FOLDER
@given(held=st.dictionaries(IDS, LABELS, min_size=1), others=st.lists(IDS), policy=st.booleans())
def test_json_lines_and_parquet_give_what_a_dictionary_gives(
    tmp_path: Path, held: Mapping[str, Any], others: Sequence[str], policy: bool
) -> None:
    attribute = ORIGIN.model_copy(update={"unknown": "group" if policy else "exclude"})
    ids = [*others, *held, *others]
    expected = [attribute.membership(held.get(id_), strict=False) for id_ in ids]
    lines = [json.dumps({"id": id_, "group": label}) for id_, label in held.items()]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    found = built(tmp_path, "a.jsonl", attribute, ids)
    np.testing.assert_array_equal(found, np.array(expected).reshape(found.shape))

    # A column of Parquet has one type: here one text, or none.
    texts = {id_: label if isinstance(label, str) else None for id_, label in held.items()}
    table = pa.table({"id": list(texts), "origin": pa.array(texts.values(), pa.string())})
    parquet.write_table(table, tmp_path / "a.parquet")
    found = built(tmp_path, "a.parquet", attribute, ids)
    expected = [attribute.membership(texts.get(id_), strict=False) for id_ in ids]
    np.testing.assert_array_equal(found, np.array(expected).reshape(found.shape))


@SHARED_FOLDER
@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), VALUES, st.sampled_from([0, 0.25, 1, 3])), min_size=1
    )
)
def test_rows_of_one_document_share_it_by_weight(
    tmp_path: Path, held: list[tuple[str, str, float]]
) -> None:
    lines = ["id,group,weight", *(f"{id_},{value},{weight}" for id_, value, weight in held)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    weights: dict[str, dict[str, float]] = {}
    for id_, value, weight in held:
        of_id = weights.setdefault(id_, {})
        of_id[value] = of_id.get(value, 0) + weight
    expected = [ORIGIN.membership(weights.get(id_), strict=False) for id_ in "abcdefg"]
    np.testing.assert_allclose(built(tmp_path, "a.csv", ORIGIN, "abcdefg"), expected)


async def test_groups_that_only_the_file_names_are_sorted_and_become_the_schema(
    tmp_path: Path,
) -> None:
    attribute = Attribute(name="origin", labels="o.csv", unknown="group")
    labels = await opened(tmp_path, attribute, "id,group\n1,b\n2,a\n3,\n4,unknown\n")
    assert labels.schema.attribute("origin").universe == ("a", "b", "unknown")
    assert rows(labels, ["1", "2", "3", "4", "5"]) == [
        [0, 1, 0],
        [1, 0, 0],
        [0, 0, 1],
        [0, 0, 1],
        [0, 0, 1],
    ]


async def test_values_of_the_file_are_mapped_to_groups(tmp_path: Path) -> None:
    attribute = Attribute.model_validate(
        {
            "name": "origin",
            "labels": "o.csv",
            "groups": {"young": {"gte": 1980}, "old": {"lt": 1980}},
        }
    )
    labels = await opened(tmp_path, attribute, "id,born\n1,1990\n2, 1950-01-02\n3,never\n")
    assert rows(labels, ["1", "2", "3"]) == [[1, 0], [0, 1], [0, 0]]
    (report,) = labels.reports({}, ["1", "2", "3", "not there"])
    assert (report.documents, report.labelled, report.origin) == (4, 2, "o.csv")
    assert [(v.value, v.documents) for v in report.without_group] == [("never", 1)]


async def test_a_list_in_parquet_shares_the_document(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"id": [1, 2], "group": [["x", "y"], ["y"]]}), tmp_path / "o.pq")
    labels = await opened(tmp_path, Attribute(name="origin", labels="o.pq"))
    assert rows(labels, ["1", "2"]) == [[0.5, 0.5], [0, 1]]


@pytest.mark.parametrize("name", ["o.csv", "o.CSV", "o.csv.gz"])
async def test_a_mark_of_byte_order_quotes_and_packing_are_understood(
    tmp_path: Path, name: str
) -> None:
    content = '\ufeffid, group\n"a,1",x\n\n\'b"\',y\n'.encode()
    packed = gzip.compress(content) if name.endswith(".gz") else content
    labels = await opened(tmp_path, Attribute(name="origin", labels=name), packed)
    assert rows(labels, ["a,1", "'b\"'"]) == [[1, 0], [0, 1]]


@pytest.mark.parametrize("header", [",id,group", "group,id,"])
async def test_a_column_without_a_name_holds_no_labels(tmp_path: Path, header: str) -> None:
    """It is that of the numbers of rows, as pandas writes it."""
    lines = [
        header,
        *("0,a,Asia 1,b,Europe" if header[0] == "," else "Asia,a,0 Europe,b,1").split(),
    ]
    labels = await opened(tmp_path, content="\n".join(lines))
    assert rows(labels, "abc") == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


async def test_an_id_with_a_zero_is_another_than_the_part_before_it(tmp_path: Path) -> None:
    lines = [{"id": "b\0c", "group": "Asia"}, {"id": "d", "group": "Africa"}]
    attribute = ORIGIN.model_copy(update={"labels": "o.jsonl"})
    labels = await opened(tmp_path, attribute, "\n".join(map(json.dumps, lines)))
    assert rows(labels, ["b", "b\0c", "d", "d\0e"]) == [[0] * 3, [1, 0, 0], [0, 0, 1], [0] * 3]


async def test_an_id_may_come_twice_with_the_same_group(tmp_path: Path) -> None:
    labels = await opened(tmp_path, content="id,group\na,Asia\nb,Europe\na,Asia\n")
    assert rows(labels, ["a", "b"]) == [[1, 0, 0], [0, 1, 0]]
    assert rows(labels, ["a\0", "half \ud800"]) == [[0, 0, 0]] * 2
    (report,) = labels.reports({}, ["a", "b"])
    assert (report.documents, report.labelled) == (2, 2)


async def test_a_file_that_has_none_of_the_documents_is_refused(tmp_path: Path) -> None:
    """Most likely another column holds the ids."""
    labels = await opened(tmp_path, content="id,group\nzz1,Asia\nzz2,Europe\n")
    ids = [f"d{number}" for number in range(20)]
    with pytest.raises(
        SourceError, match=r"none of the 20 checked documents, such as 'd0', .* check which column"
    ):
        labels.reports({}, ids)
    (few,) = labels.reports({}, ids[:19])
    assert (few.documents, few.labelled) == (19, 0)
    (some,) = labels.reports({}, [*ids, "zz1"])
    assert (some.documents, some.labelled) == (21, 1)


async def test_a_file_whose_values_no_group_takes_is_told_so(tmp_path: Path) -> None:
    """The ids are right then, and another column would not help."""
    ids = [f"d{number}" for number in range(20)]
    lines = "".join(f"{id_},{['asia', 'EU'][len(id_) % 2]}\n" for id_ in ids)
    labels = await opened(tmp_path, content=f"id,group\n{lines}zz1,Asia\n")
    said = r"none of the 20 .* into a group; .*, and list the values EU, asia under 'groups:'"
    with pytest.raises(SourceError, match=said):
        labels.reports({}, ids)
    (some,) = labels.reports({}, [*ids, "zz1"])
    assert (some.documents, some.labelled) == (21, 1)


NEEDED = "line 2: it needs an 'id' and a 'group' (or 'origin')"


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("o.csv", "", "have no rows; write one for each document"),
        ("o.csv", "id\na\n", NEEDED),
        ("o.csv", "id,one,two\na,b,c\n", NEEDED),
        ("o.csv", "name,group\na,b\n", NEEDED),
        ("o.csv", "id,group,group\na,b,c\n", "line 1: it names the column 'group' twice"),
        ("o.csv", "id,group\n", "have no rows; write one for each document"),
        ("o.csv", "id,group\na,Asia\nb\n", "line 3: it needs an 'id' and a 'group'"),
        ("o.csv", "id,group\n,Asia\n", "line 2: it has no id"),
        (
            "o.csv",
            "id,group\na,Asia\nb,x\na,Asia\nb,Asia\n",
            "give the document 'b' several groups in lines 3 to 5;",
        ),
        ("o.csv", "id,group,weight\na,Asia,-1\n", "line 2: the weight must be"),
        ("o.csv", "id,group,weight\na,Asia,nan\n", "the weight must be 0 or more, not 'nan'"),
        ("o.csv", 'id,group\n"a,Asia\n', "line 2: it is not CSV (unexpected end of data)"),
        ("o.csv", b"id,group\na,Asi\xff\n", "after line 0: it is not UTF-8 text; save it as UTF-8"),
        ("o.csv.gz", b"id,group\n", "cannot be read to its end (Not a gzipped file"),
        (
            "o.csv.gz",
            gzip.compress(b"id,group\na,Asia\n", mtime=0)[:-9],
            "cannot be read to its end",
        ),
        ("o.jsonl", '{"id": "a", "group": "Asia"}\n{', "line 2: it is not valid"),
        ("o.jsonl", '{"id": "a", "group": "Asia"}\n{"group": "Asia"}', "line 2: it has no id"),
        (
            "o.jsonl",
            '{"id": "a", "group": "Asia"}\n{"id": "a", "group": "Europe", "weight": 1}',
            "line 2: it needs a 'weight' like the other lines",
        ),
        ("o.csv", "id,group,weight\na,Asia,1\nb,Asia\n", "line 3: it needs a 'weight' like the"),
        ("o.jsonl", "[1]", "line 1: it is not a JSON object"),
        ("o.jsonl", '{"id": "a"}', "line 1: it needs an 'id' and a 'group'"),
        ("o.jsonl", '{"id": 1.5, "group": "Asia"}', "it has no id (text or a whole number)"),
        ("o.jsonl", '{"id": "a", "group": {"Asia": "x"}}', "line 1: the weight"),
        (
            "o.jsonl",
            '{"id": "a", "group": [["Asia"]]}',
            "a label must be text, a list or a mapping",
        ),
        ("o.parquet", b"PAR1", "cannot be read after row 0: "),
        ("o.xlsx", b"", "must be a .csv, .jsonl or .parquet file; the first two may end in .gz."),
    ],
)
async def test_a_file_that_is_wrong_is_refused_in_one_sentence(
    tmp_path: Path, name: str, content: str | bytes, sentence: str
) -> None:
    attribute = ORIGIN.model_copy(update={"labels": name})
    with pytest.raises(InputError) as refused:
        await opened(tmp_path, attribute, content)
    assert sentence in str(refused.value)
    assert str(tmp_path / name) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not [*(tmp_path / "kept").glob("*.sqlite*")]


@pytest.mark.parametrize(
    ("content", "population", "sentence"),
    [
        ("id,group\na,x\n", None, "have 1 groups for origin, which needs at least two"),
        ("id,group\na,x\nb,y\n", {"z": 1.0}, "do not fit the attribute origin: population names"),
        (
            "id,group\n" + "".join(f"{n},{n}\n" for n in range(1200)),
            None,
            "have more than 1,000 groups for origin; list its groups and their values",
        ),
    ],
)
async def test_groups_of_the_file_that_do_not_fit_are_refused(
    tmp_path: Path, content: str, population: dict[str, float] | None, sentence: str
) -> None:
    attribute = Attribute(name="origin", labels="o.csv", population=population)
    with pytest.raises(SourceError) as refused:
        await opened(tmp_path, attribute, content)
    assert sentence in str(refused.value)


async def test_a_file_is_read_again_only_where_it_has_changed(tmp_path: Path) -> None:
    counts: list[int] = []
    await opened(tmp_path, content="id,group\na,Asia\n", progress=counts.append)
    assert counts == [1]
    await opened(tmp_path, progress=counts.append)
    assert counts == [1]
    labels = await opened(tmp_path, content="id,group\na,Europe\nb,Asia\n", progress=counts.append)
    assert counts == [1, 2]
    assert rows(labels, ["a"]) == [[0, 1, 0]]
    assert len([*(tmp_path / "kept").glob("*.sqlite")]) == 1


async def test_what_versions_before_the_first_kept_is_taken_away(tmp_path: Path) -> None:
    """It was a folder, where there is a file now."""
    content = "id,group\na,Asia\n"
    await opened(tmp_path, content=content)
    (kept,) = (tmp_path / "kept").glob("*.sqlite")
    kept.unlink()
    old = kept.with_name(kept.name.partition("-")[0] + "-old")
    old.mkdir()
    (old / "ids").touch()
    assert rows(await opened(tmp_path), ["a"]) == [[1, 0, 0]]
    assert not old.exists()


async def test_other_columns_of_parquet_are_not_read(tmp_path: Path) -> None:
    """Such as a time that Python has no value for."""
    late = pa.array([2**50], pa.timestamp("s"))
    table = pa.table({"ID": ["a"], "born": late, "origin": ["Asia"], "weight": [1]})
    parquet.write_table(table, tmp_path / "o.parquet")
    attribute = ORIGIN.model_copy(update={"labels": "o.parquet"})
    assert rows(await opened(tmp_path, attribute), ["a"]) == [[1, 0, 0]]


async def test_several_who_open_a_new_file_at_once_read_it_once(tmp_path: Path) -> None:
    counts: list[int] = []
    (tmp_path / "origins.csv").write_text("id,group\na,Asia\n")
    found = await asyncio.gather(*(opened(tmp_path, progress=counts.append) for _ in range(4)))
    assert counts == [1]
    assert all(rows(labels, ["a"]) == [[1, 0, 0]] for labels in found)


async def test_what_a_disk_damaged_is_built_again(tmp_path: Path) -> None:
    await opened(tmp_path, content="id,group\na,Asia\n")
    for left in (20, 5000):
        (file,) = (tmp_path / "kept").glob("*.sqlite")
        file.write_bytes(file.read_bytes()[:left])
        assert rows(await opened(tmp_path), ["a"]) == [[1, 0, 0]]


SLOW_BUILD = """
import asyncio, pathlib, sys, time
from fairqr.retrieval.sources.labels import LabelReader
from fairqr.retrieval.sources.schema import Attribute
folder = pathlib.Path(sys.argv[1])
def halt(count):
    print(count, flush=True)
    time.sleep(60)
attribute = Attribute(name="origin", labels="origins.csv", groups=("Asia", "Europe", "Africa"))
asyncio.run(LabelReader.open({"origin": attribute}, folder, store=folder / "kept", progress=halt))
"""


async def test_a_build_that_is_killed_leaves_nothing_that_counts(tmp_path: Path) -> None:
    (tmp_path / "origins.csv").write_text("id,group\na,Asia\n")
    command = [sys.executable, "-c", SLOW_BUILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        child.send_signal(signal.SIGKILL)
    left = [*(tmp_path / "kept").glob("*.sqlite-*")]
    assert len(left) == 1
    assert rows(await opened(tmp_path), ["a"]) == [[1, 0, 0]]
    assert not left[0].exists()


async def test_a_build_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    (tmp_path / "origins.csv").write_text("id,group\na,Asia\n" * 2)
    loop, entered, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def halt(_: int) -> None:
        loop.call_soon_threadsafe(entered.set)
        release.wait(PATIENCE)

    (tmp_path / "origins.csv").write_text(
        "id,group\n" + "".join(f"{n},Asia\n" for n in range(25_000))
    )
    waiting = asyncio.create_task(opened(tmp_path, progress=halt))
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


async def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "origins.csv").write_text("id,group\na,Asia\n")

    def change(_: int) -> None:
        with (tmp_path / "origins.csv").open("a") as stream:
            stream.write("b,Asia\n")

    with pytest.raises(SourceError, match="changed while we read them; try again"):
        await opened(tmp_path, progress=change)


async def test_very_many_values_are_counted_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels_module, "MAX_LABELS", 10)
    attribute = Attribute.model_validate(
        {"name": "origin", "labels": "o.csv", "groups": {"low": {"lt": 50}, "high": {"gte": 50}}}
    )
    content = "id,group\n" + "".join(f"{n},{n}\n" for n in range(100))
    labels = await opened(tmp_path, attribute, content)
    assert rows(labels, ["3", "49", "50", "99"]) == [[1, 0], [1, 0], [0, 1], [0, 1]]
    (report,) = labels.reports({}, [str(number) for number in range(100)])
    assert (report.labelled, len(report.values), report.more_values) == (100, 10, True)


GENDER = Attribute.model_validate(
    {"name": "gender", "field": "sex", "groups": {"female": ["F", "1"], "male": ["M", "true"]}}
)


async def test_fields_are_read_beside_files_in_the_order_of_the_schema(tmp_path: Path) -> None:
    (tmp_path / "origins.csv").write_text("id,group\na,Asia\n")
    labels = await LabelReader.open(
        {"gender": GENDER, "origin": ORIGIN}, tmp_path, store=tmp_path / "kept"
    )
    assert labels.field_attributes == [GENDER]
    values = ["F", None, ["F", "M", "x", "M"], {"F": 1, "M": 3}, 1, True, "", "x"]
    found = labels.memberships(["a", *"bcdefgh"], {"gender": values})
    assert list(found) == ["gender", "origin"]
    assert found["gender"].tolist() == [
        [1, 0],
        [0, 0],
        [0.25, 0.5],
        [0.25, 0.75],
        [1, 0],
        [0, 1],
        [0, 0],
        [0, 0],
    ]
    assert found["origin"].tolist() == [[1, 0, 0], *([[0, 0, 0]] * 7)]
    assert {
        name: array.shape for name, array in labels.memberships([], {"gender": []}).items()
    } == {
        "gender": (0, 2),
        "origin": (0, 3),
    }
    report = labels.field_report("gender", values)
    assert (report.origin, report.documents, report.labelled) == ("sex", 8, 5)
    assert [(v.value, v.documents) for v in report.without_group] == [("x", 2)]


@pytest.mark.parametrize("label", [{"F": "much"}, {"F": -1}, [["F"]], [{"F": 1}], object()])
async def test_a_field_that_cannot_be_a_label_is_refused_in_one_sentence(
    tmp_path: Path, label: object
) -> None:
    labels = await LabelReader.open({"gender": GENDER}, tmp_path, store=tmp_path / "kept")
    with pytest.raises(SourceError, match="The field 'sex' of the document 'a' cannot be read as"):
        labels.memberships(["a"], {"gender": [label]})
