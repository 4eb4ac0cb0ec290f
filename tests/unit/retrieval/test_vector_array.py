"""Vectors in one file: exact neighbours, repeatable scores, and writes that break off."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fairqr.base.errors import InputError
from fairqr.retrieval.encoders.encoder import EncoderMark, unit_rows
from fairqr.retrieval.engines.hybrid import vector_array as module
from fairqr.retrieval.engines.hybrid.vector_array import (
    VectorFolder,
    carry_over,
    cosines,
    digest_of,
    encoder_names,
    highest,
    scores_of,
)

MARK = EncoderMark("words", 3, (0.1, 0.2, 0.3))


# Few distinct values, so that many rows tie, and many are zeros.
coarse = st.integers(-2, 2).map(float)
fine = st.floats(-1e3, 1e3)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int, int]:
    d = draw(st.integers(1, 9))
    rows = draw(
        arrays(float, (draw(st.integers(0, 60)), d), elements=draw(st.sampled_from([coarse, fine])))
    )
    query = draw(arrays(float, (1, d), elements=coarse).filter(lambda q: q.any()))
    return unit_rows(rows), unit_rows(query)[0], draw(st.integers(1, 70)), draw(st.integers(1, 20))


@settings(max_examples=150)
@given(problems())
def test_the_best_by_blocks_are_the_best_of_all(problem: tuple) -> None:
    """Whatever the size of a block, the first n by score and row are those of a full sort."""
    vectors, query, n, block = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block * 4 * vectors.shape[1])
        rows = highest(cosines(vectors, query), n)
    assert len(set(rows.tolist())) == len(rows)
    words = [row for row in range(len(vectors)) if vectors[row].any()]
    exact = dict(zip(words, scores_of(vectors, query, words).tolist(), strict=True))
    best = sorted(words, key=lambda row: (-exact[row], row))[:n]
    assert sorted(rows.tolist(), key=lambda row: (-exact[row], row))[:n] == best


@settings(max_examples=100)
@given(problems())
def test_all_that_tie_with_the_last_are_among_them(problem: tuple) -> None:
    """So that whoever breaks ties by something else than the row can do it."""
    vectors, query, n, _ = problem
    found = set(highest(cosines(vectors, query), n).tolist())
    exact = scores_of(vectors, query, range(len(vectors)))
    words = [row for row in range(len(vectors)) if vectors[row].any()]
    if len(words) > n:
        last = sorted((exact[row] for row in words), reverse=True)[n - 1]
        assert {row for row in words if exact[row] >= last} <= found


@settings(max_examples=100)
@given(problems())
def test_a_score_is_half_of_one_and_the_cosine(problem: tuple) -> None:
    vectors, query, _, _ = problem
    scores = scores_of(vectors, query, range(len(vectors)))
    for row, score in enumerate(scores):
        assert 0 <= score <= 1
        if vectors[row].any():
            # By another way: half of 1 + cos is 1 less a quarter of the squared distance.
            distance = float(((vectors[row].astype(float) - query.astype(float)) ** 2).sum())
            assert score == pytest.approx(1 - distance / 4, abs=1e-6)
        else:
            assert score == 0


def test_a_score_does_not_depend_on_what_is_scored_beside() -> None:
    """To the last digit, for a search and a rescoring have to agree, in widths with odd ends."""
    random = np.random.default_rng(3)
    for d in (1, 7, 33, 256, 1000):
        vectors = unit_rows(random.standard_normal((300, d)))
        query = unit_rows(random.standard_normal((1, d)))[0]
        together = scores_of(vectors, query, range(300))
        for rows in ([5], [299, 0], random.permutation(300)[:77]):
            assert scores_of(vectors, query, rows).tolist() == together[np.asarray(rows)].tolist()


def test_single_precision_does_not_choose_among_near_ties() -> None:
    """Cosines may differ by less than it can tell; the best are found all the same."""
    random = np.random.default_rng(8)
    base, n = random.standard_normal(256), 1500
    vectors = unit_rows(base + 1e-2 * random.standard_normal((3000, 256)))
    query = unit_rows(base[None])[0]
    scores = scores_of(vectors, query, range(3000))
    best = np.argsort(-scores, kind="stable")[:n]
    rough = np.vecdot(vectors, query)
    assert len(np.unique(rough)) < len(np.unique(scores)), "it cannot tell some of them apart"
    assert set(best.tolist()) <= set(highest(cosines(vectors, query), n).tolist())


# --- on disk ----------------------------------------------------------------------------------


def vectors_of(numbers: list[int]) -> np.ndarray:
    return unit_rows([[n, 2 * n, 1] for n in numbers])


def rounded(vectors: np.ndarray) -> np.ndarray:
    """What half precision leaves of them, at length 1 again."""
    return unit_rows(vectors.astype(np.float16))


def digests_of(numbers: list[int]) -> list[bytes]:
    return [digest_of(f"text {n}") for n in numbers]


def written(folder: Path, *batches: list[int], mark: EncoderMark = MARK) -> VectorFolder:
    folder.mkdir(exist_ok=True, parents=True)
    stored = VectorFolder(folder, mark)
    for numbers in batches:
        rows = stored.append(stored.rows(), numbers, digests_of(numbers), vectors_of(numbers))
        assert rows == stored.rows()
    return stored


def test_the_row_of_a_document_is_its_number(tmp_path: Path) -> None:
    """Numbers that were left out are rows of zeros."""
    stored = written(tmp_path, [0, 2, 3], [7])
    expected = np.zeros((8, 3))
    expected[[0, 2, 3, 7]] = rounded(vectors_of([0, 2, 3, 7]))
    assert stored.load() == pytest.approx(expected, abs=1e-7)
    assert (tmp_path / "vectors").stat().st_size == 8 * 3 * 2, "in half precision"


def test_half_precision_changes_a_cosine_by_less_than_a_thousandth(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    rows = unit_rows(random.standard_normal((500, 384)))
    stored = VectorFolder(tmp_path, EncoderMark("wide", 384, (0.1,)))
    stored.append(0, range(500), [b"0" * 16] * 500, rows)
    loaded = stored.load()
    assert np.linalg.norm(loaded.astype(float), axis=1) == pytest.approx(np.ones(500), abs=1e-6)
    cosines = (loaded.astype(float) * rows).sum(axis=1)
    assert cosines == pytest.approx(np.ones(500), abs=1e-6)
    assert np.abs(loaded @ rows[7] - rows @ rows[7]).max() < 3e-4


def test_what_was_loaded_before_is_not_read_again(tmp_path: Path) -> None:
    """And whatever is read at once, a row has the same bits."""
    stored = written(tmp_path, list(range(20)))
    before = stored.load()
    stored.append(20, [20, 21], digests_of([20, 21]), vectors_of([20, 21]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", 3 * 12)
        assert stored.load(before).tobytes() == stored.load().tobytes()
    assert stored.load(before).tobytes() == stored.load().tobytes()
    marked = before + 1
    assert stored.load(marked)[:20].tobytes() == marked.tobytes()


def test_memory_grows_by_steps_and_what_is_in_use_stays(tmp_path: Path) -> None:
    """A search that goes on while rows are added reads what it began with."""
    stored = written(tmp_path, list(range(40)))
    first = stored.load()
    seen, copies, loaded = first.tobytes(), 0, first
    for number in range(40, 100):
        stored.append(number, [number], digests_of([number]), vectors_of([number]))
        before, loaded = loaded, stored.load(loaded)
        copies += not np.shares_memory(before, loaded)
        assert len(loaded) == number + 1
    assert copies < 10
    assert first.tobytes() == seen
    assert loaded.tobytes() == stored.load().tobytes()


@settings(max_examples=60)
@given(st.sampled_from(["vectors", "texts"]), st.integers(0, 200), st.binary(max_size=40))
def test_what_a_killed_write_left_behind_is_dropped(name: str, kept: int, garbage: bytes) -> None:
    """Rows count when the manifest has them; what is written next stands right after those."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        stored = written(folder, [0, 1, 4])
        whole = stored.load()
        (folder / name).write_bytes((folder / name).read_bytes() + garbage)
        assert stored.load().tolist() == whole.tolist()
        more = written(folder, [6]).load()
        assert more[:5].tolist() == whole.tolist()
        assert more[5:] == pytest.approx(np.vstack([np.zeros(3), rounded(vectors_of([6]))[0]]))
        # A file that was cut has no rows at all, and is written again.
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:kept])
        assert stored.rows() == (7 if kept >= len(data) else 0)
        again = written(folder, [9]).load()
        assert again[-1] == pytest.approx(rounded(vectors_of([9]))[0])


def test_rows_that_are_loaded_stay_when_the_folder_goes(tmp_path: Path) -> None:
    vectors = written(tmp_path, [0, 1, 2]).load()
    for path in tmp_path.iterdir():
        path.unlink()
    assert vectors[2] == pytest.approx(rounded(vectors_of([2]))[0])


@pytest.mark.parametrize(
    "manifest",
    ["", "{", "[]", "{}", None, '{"dimensions": 3, "probe": [0.1, 0.2, 0.3], "rows": 2}'],
)
def test_a_folder_that_cannot_be_read_has_no_rows(tmp_path: Path, manifest: str | None) -> None:
    """The last one is of an older format, in single precision."""
    stored = written(tmp_path / "words", [0, 1])
    if manifest is None:
        (tmp_path / "words/manifest.json").unlink()
    else:
        (tmp_path / "words/manifest.json").write_text(manifest)
    assert stored.load().shape == (0, 3)
    assert encoder_names(tmp_path) == []


def test_vectors_of_another_model_are_refused(tmp_path: Path) -> None:
    written(tmp_path, [0])
    for other in (EncoderMark("words", 4, MARK.probe), EncoderMark("words", 3, (0.1, 0.2, 0.4))):
        with pytest.raises(InputError, match="another model of that name, with 3 dimensions"):
            VectorFolder(tmp_path, other).load()


# --- from build to build ----------------------------------------------------------------------


def test_the_next_build_takes_over_vectors_by_their_texts(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    written(old / "words", [0, 2, 3])
    written(old / "other", [1])
    assert encoder_names(old) == ["words", "words"]
    carry_over(old, new)
    stored = VectorFolder(new / "words", MARK)
    assert stored.rows() == 0, "they are not the rows of this build"
    earlier = stored.earlier()
    assert set(digests_of([0, 2, 3])) <= set(earlier)
    assert earlier[digest_of("text 2")].tolist() == vectors_of([2]).astype(np.float16)[0].tolist()
    assert VectorFolder(old / "words", MARK).load().shape == (4, 3)
    stored.forget_earlier()
    assert stored.earlier() == {}


def test_builds_that_were_never_finished_pass_all_of_it_on(tmp_path: Path) -> None:
    """Also if one of them encoded nothing, and another only a part."""
    folders = [tmp_path / f"v{number}" for number in range(5)]
    written(folders[0] / "words", [0, 1, 2])
    carry_over(folders[0], folders[1])
    carry_over(folders[1], folders[2])
    written(folders[2] / "words", [5])
    carry_over(folders[2], folders[3])
    carry_over(folders[3], folders[4])
    earlier = VectorFolder(folders[4] / "words", MARK).earlier()
    assert set(digests_of([0, 1, 2, 5])) <= set(earlier)
    depth = len(list(folders[4].rglob("manifest.json")))
    assert depth == 2, "a build without vectors of its own adds no folder"


def test_writes_to_the_old_build_do_not_show_in_the_next(tmp_path: Path) -> None:
    """Their files may be the same ones on disk."""
    old, new = tmp_path / "old", tmp_path / "new"
    stored = written(old / "words", [0, 1])
    carry_over(old, new)
    stored.append(2, [2], digests_of([2]), vectors_of([2]))
    earlier = VectorFolder(new / "words", MARK).earlier()
    assert set(earlier) == set(digests_of([0, 1]))


def test_vectors_of_another_model_are_not_taken_over(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    written(old / "words", [0, 1])
    carry_over(old, new)
    assert VectorFolder(new / "words", EncoderMark("words", 3, (0.9, 0.2, 0.3))).earlier() == {}


def test_where_nothing_was_encoded_nothing_is_carried_over(tmp_path: Path) -> None:
    carry_over(tmp_path / "old", tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
