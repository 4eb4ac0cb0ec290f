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
from fairqr.retrieval.engines import vector_array as module
from fairqr.retrieval.engines.vector_array import VectorArray, nearest, scores_of

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


@settings(max_examples=150, deadline=None)
@given(problems())
def test_the_best_by_blocks_are_the_best_of_all(problem: tuple) -> None:
    """Whatever the size of a block, the first n by score and row are those of a full sort."""
    vectors, query, n, block = problem
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block * 4 * vectors.shape[1])
        rows = nearest(vectors, query, n)
    assert len(set(rows.tolist())) == len(rows)
    words = [row for row in range(len(vectors)) if vectors[row].any()]
    exact = dict(zip(words, scores_of(vectors, query, words).tolist(), strict=True))
    best = sorted(words, key=lambda row: (-exact[row], row))[:n]
    assert sorted(rows.tolist(), key=lambda row: (-exact[row], row))[:n] == best


@settings(max_examples=100, deadline=None)
@given(problems())
def test_all_that_tie_with_the_last_are_among_them(problem: tuple) -> None:
    """So that whoever breaks ties by something else than the row can do it."""
    vectors, query, n, _ = problem
    found = set(nearest(vectors, query, n).tolist())
    exact = scores_of(vectors, query, range(len(vectors)))
    words = [row for row in range(len(vectors)) if vectors[row].any()]
    if len(words) > n:
        last = sorted((exact[row] for row in words), reverse=True)[n - 1]
        assert {row for row in words if exact[row] >= last} <= found


@settings(max_examples=100, deadline=None)
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


def test_what_is_kept_does_not_grow_with_the_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """However good each block is: rising cosines are the worst case for a running threshold."""
    n, count = 10, 20_000
    angles = np.linspace(np.pi, 0, count)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    kept: list[int] = []
    concatenate = np.concatenate

    def watched(parts: list[np.ndarray]) -> np.ndarray:
        kept.append(sum(len(part) for part in parts))
        return concatenate(parts)

    monkeypatch.setattr(module, "BLOCK_BYTES", 100 * 8)
    monkeypatch.setattr(module.np, "concatenate", watched)
    rows = nearest(vectors, np.array([1, 0], dtype=np.float32), n)
    assert set(range(count - n, count)) <= set(rows.tolist())
    # Near the pole cosines lie within the slack, a hundred rows of them or so.
    assert max(kept) < 600


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
    assert set(best.tolist()) <= set(nearest(vectors, query, n).tolist())


# --- on disk ----------------------------------------------------------------------------------


def vectors_of(numbers: list[int]) -> np.ndarray:
    return np.array([[n, 2 * n, 1] for n in numbers], dtype=np.float32)


def written(folder: Path, *batches: list[int]) -> VectorArray:
    folder.mkdir(exist_ok=True)
    array = VectorArray.open(folder, MARK)
    for numbers in batches:
        array = array.with_rows(numbers, vectors_of(numbers))
    return array


def test_the_row_of_a_document_is_its_number(tmp_path: Path) -> None:
    """Numbers that were left out are rows of zeros."""
    array = written(tmp_path, [0, 2, 3], [7])
    expected = np.zeros((8, 3))
    expected[[0, 2, 3, 7]] = vectors_of([0, 2, 3, 7])
    assert array.vectors.tolist() == expected.tolist()
    assert VectorArray.open(tmp_path, MARK).vectors.tolist() == expected.tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 200), st.binary(max_size=40))
def test_what_a_killed_write_left_behind_is_dropped(kept: int, garbage: bytes) -> None:
    """Rows count when the manifest has them; what is written next stands right after those."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        whole = written(folder, [0, 1, 4])
        (folder / "vectors").write_bytes((folder / "vectors").read_bytes() + garbage)
        assert VectorArray.open(folder, MARK).vectors.tolist() == whole.vectors.tolist()
        more = written(folder, [6])
        assert more.vectors[:5].tolist() == whole.vectors.tolist()
        assert more.vectors[5:].tolist() == [[0, 0, 0], [6, 12, 1]]
        # A file that was cut has no rows at all, and is written again.
        data = (folder / "vectors").read_bytes()
        (folder / "vectors").write_bytes(data[:kept])
        assert len(VectorArray.open(folder, MARK).vectors) == (7 if kept >= len(data) else 0)
        again = written(folder, [9])
        assert again.vectors[-1].tolist() == [9, 18, 1]


def test_rows_that_are_mapped_stay_when_the_folder_goes(tmp_path: Path) -> None:
    array = written(tmp_path, [0, 1, 2])
    for path in tmp_path.iterdir():
        path.unlink()
    assert array.vectors[2].tolist() == [2, 4, 1]


@pytest.mark.parametrize("manifest", ["", "{", "[]", "{}", None])
def test_a_folder_that_cannot_be_read_has_no_rows(tmp_path: Path, manifest: str | None) -> None:
    written(tmp_path, [0, 1])
    if manifest is None:
        (tmp_path / "manifest.json").unlink()
    else:
        (tmp_path / "manifest.json").write_text(manifest)
    assert VectorArray.open(tmp_path, MARK).vectors.shape == (0, 3)


def test_vectors_of_another_model_are_refused(tmp_path: Path) -> None:
    written(tmp_path, [0])
    for other in (EncoderMark("words", 4, MARK.probe), EncoderMark("words", 3, (0.1, 0.2, 0.4))):
        with pytest.raises(InputError, match="another model of that name, of 3 dimensions"):
            VectorArray.open(tmp_path, other)
