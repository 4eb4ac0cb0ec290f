"""Draws by weight have their probabilities, whether items stand alone or in blocks."""

from __future__ import annotations

import numpy as np
import pytest

from fairqr.retrieval.sampling import tables
from fairqr.retrieval.sampling.streams import stream_of
from fairqr.retrieval.sampling.tables import WeightTable
from tests.unit.retrieval.sampling.enumeration import SIGNIFICANCE, p_value

WEIGHTS = np.array([0.5, 30.0, 1.0, 0.25, 1.0, 2.0, 1000.0, 0.125, 3.0, 1.0, 0.5])
WITHOUT = np.array([6, 1, 9])


@pytest.mark.parametrize("blocks", [1, 3, 4, 1 << 14])
def test_items_are_drawn_by_weight_and_some_never(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BLOCKS", blocks)
    table = WeightTable.of(np.log(WEIGHTS), WITHOUT, np.log(3.0))
    assert len(table.blocks) <= max(blocks, 1)
    kept = WEIGHTS.copy()
    kept[WITHOUT] = 0
    assert table.total == pytest.approx(kept.sum() / 3)
    drawn = table.draw((10_000, 4), stream_of(1, str(blocks)))
    assert drawn.shape == (10_000, 4)
    expected = {(item,): float(kept[item] / kept.sum()) for item in np.flatnonzero(kept)}
    assert p_value(drawn.reshape(-1, 1), expected) > SIGNIFICANCE


def test_a_pool_of_many_blocks_is_drawn_from_evenly() -> None:
    """Each of 50 stretches of 100,000 equal items, and each place within the blocks of seven."""
    n = 100_000
    table = WeightTable.of(np.zeros(n), np.arange(0), 0.0)
    drawn = table.draw((20_000, 5), stream_of(2)).ravel()
    length = table.blocks.shape[1]
    assert length == 7
    for cells in (drawn // 2000, drawn % length):
        kinds = int(cells.max()) + 1
        expected = {(kind,): 1 / kinds for kind in range(kinds)}
        # n is not a multiple of 7, which changes chances by 1e-5 of themselves.
        assert p_value(cells[:, None], expected) > SIGNIFICANCE


class Greatest(np.random.Generator):
    """Draws the number that is next to 1, or 1 itself as rounding could make it."""

    def random(self, size: object = None) -> np.ndarray:  # type: ignore[override]
        return np.ones(size)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("blocks", [3, 1 << 14])
def test_rounding_up_to_the_total_gives_an_item_with_weight(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BLOCKS", blocks)
    without = np.array([8, 9, 10])
    table = WeightTable.of(np.log(WEIGHTS), without, np.log(1000.0))
    assert table.draw((2, 2), Greatest(np.random.PCG64(0))).tolist() == [[7, 7], [7, 7]]
