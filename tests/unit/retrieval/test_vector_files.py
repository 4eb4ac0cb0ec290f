"""Vectors on disk: what was appended is read, torn writes are cut off, texts are found again."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairqr.errors import InputError
from fairqr.retrieval.encoders.encoder import EncoderMark, hash_of
from fairqr.retrieval.vectors.vector_files import KnownTexts, VectorFiles

MARK = EncoderMark("words", 3, (0.1, 0.2, 0.3))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "dense"


def some_rows(first: int, count: int) -> tuple[list[int], list[bytes], np.ndarray]:
    numbers = list(range(first, first + count))
    vectors = np.array([[n, 2 * n, 0] for n in numbers], dtype=np.float32)
    return numbers, [hash_of(str(n)) for n in numbers], vectors.reshape(count, 3)


def content(files: VectorFiles) -> list[tuple[int, bytes, list[float]]]:
    return [
        (int(number), hash_.tobytes(), vector.tolist())
        for number, hash_, vector in zip(files.numbers, files.hashes, files.vectors, strict=True)
    ]


def test_what_was_appended_is_read(folder: Path) -> None:
    files = VectorFiles.create(folder, MARK)
    assert (len(files), files.last_number, files.vectors.shape) == (0, -1, (0, 3))
    files = files.append(*some_rows(2, 4)).append(*some_rows(9, 1)).append(*some_rows(10, 0))
    opened = VectorFiles.open(folder, MARK)
    assert opened is not None
    assert content(opened) == content(files)
    assert opened.numbers.tolist() == [2, 3, 4, 5, 9]
    assert opened.last_number == 9
    assert opened.vectors[4].tolist() == [9, 18, 0]
    assert opened.hashes[4].tobytes() == hash_of("9")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["numbers", "hashes", "vectors"]), st.integers(0, 200), st.binary(max_size=9)
)
def test_a_torn_write_leaves_whole_rows_only(name: str, kept: int, garbage: bytes) -> None:
    """Cut any file anywhere, or let it run over: what is read is a beginning of what was written,
    and what is appended next stands right after it."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "dense"
        whole = VectorFiles.create(folder, MARK).append(*some_rows(0, 6))
        expected = content(whole)
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:kept] + (garbage if kept >= len(data) else b""))
        files = VectorFiles.open(folder, MARK)
        assert files is not None
        count = len(files)
        assert content(files) == expected[:count]
        assert count == 6 or kept < len(data)
        more = VectorFiles.read(folder, 3).append(*some_rows(7, 2))
        assert [row[0] for row in content(more)] == [*range(count), 7, 8]
        assert more.vectors[-1].tolist() == [8, 16, 0]
        assert more.hashes[-1].tobytes() == hash_of("8")


def test_rows_that_are_mapped_stay_when_the_folder_goes(folder: Path) -> None:
    files = VectorFiles.create(folder, MARK).append(*some_rows(0, 5))
    for path in folder.iterdir():
        path.unlink()
    assert files.vectors[4].tolist() == [4, 8, 0]


@pytest.mark.parametrize("manifest", ["", "{", "[]", '{"format": 99}', None])
def test_a_folder_that_cannot_be_read_is_none(folder: Path, manifest: str | None) -> None:
    VectorFiles.create(folder, MARK).append(*some_rows(0, 2))
    if manifest is None:
        (folder / "manifest.json").unlink()
    else:
        (folder / "manifest.json").write_text(manifest)
    assert VectorFiles.open(folder, MARK) is None


def test_numbers_that_do_not_rise_are_damage(folder: Path) -> None:
    VectorFiles.create(folder, MARK).append(*some_rows(0, 2)).append(*some_rows(1, 2))
    assert VectorFiles.open(folder, MARK) is None


def test_vectors_of_another_model_are_refused(folder: Path) -> None:
    VectorFiles.create(folder, MARK)
    for other in (EncoderMark("words", 4, MARK.probe), EncoderMark("words", 3, (0.1, 0.2, 0.4))):
        with pytest.raises(InputError, match="another model of that name, of 3 dimensions"):
            VectorFiles.open(folder, other)


hashes = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(
    lambda halves: b"".join(half.to_bytes(8, "little") for half in halves)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(hashes, max_size=8), min_size=1, max_size=3), st.lists(hashes, max_size=8))
def test_texts_are_found_as_in_a_table(stored: list[list[bytes]], asked: list[bytes]) -> None:
    """Also where texts share half of their hashes; the first files and rows win."""
    with TemporaryDirectory() as temporary:
        table: dict[bytes, list[float]] = {}
        files = []
        for place, some in enumerate(stored):
            rows = np.array([[place, row, 1] for row in range(len(some))], dtype=np.float32)
            made = VectorFiles.create(Path(temporary) / str(place), MARK)
            files.append(made.append(list(range(len(some))), some, rows.reshape(-1, 3)))
            for hash_, row in zip(some, rows, strict=True):
                table.setdefault(hash_, row.tolist())
        found = KnownTexts(files).find(asked)
        assert [None if row is None else row.tolist() for row in found] == [
            table.get(hash_) for hash_ in asked
        ]
