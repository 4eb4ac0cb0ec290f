"""The registry: what is listed, options and their errors, and files of weights."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairqr.base.errors import InputError
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.rerankers.base import Candidates, min_max
from fairqr.retrieval.rerankers.learning import (
    FEATURES,
    DeltrTraining,
    Example,
    Training,
    train_deltr,
    train_dlf,
)
from fairqr.retrieval.rerankers.protection import group_of_each
from fairqr.retrieval.rerankers.registry import ABOUT, RERANKERS, TRAINED, open_reranker
from tests.unit.engines import ranked

Make = Callable[..., Candidates]


@pytest.fixture
def weights(make_candidates: Make, tmp_path: Path) -> dict[str, Path]:
    """Files of weights of both trained re-rankers."""
    columns = np.random.default_rng(1).random((6, len(FEATURES)))
    item = Example("t", make_candidates("mmfmff"), columns, np.array([1.0, 0, 1, 0, 1, 0]))
    paths = {name: tmp_path / f"{name}.json" for name in ("deltr", "dlf")}
    train_deltr([item], DeltrTraining()).save(paths["deltr"])
    train_dlf([item], Training()).save(paths["dlf"])
    return paths


@pytest.mark.parametrize("name", RERANKERS)
async def test_each_keeps_the_interfaces_promises(
    name: str, engine: SearchEngine, make_candidates: Make, weights: dict[str, Path]
) -> None:
    """At most k of the candidates, each once, with scores that never increase; twice the same."""
    assert (name in TRAINED) == (name in weights)
    assert "(" in ABOUT[name]
    options = {"weights": weights[name]} if name in weights else {}
    reranker = open_reranker(name, options)
    found = await ranked(engine, "physics chemistry", 40)
    labels = ["f" if int(id_[-2:]) >= 20 else "m?b"[int(id_[-2:]) % 3] for id_ in found.ids]
    for size, k in itertools.product((0, 1, 2, 40), (1, 2, 20, 50)):
        base = make_candidates("".join(labels[:size]))
        candidates = Candidates(
            found.top(size), base.memberships, base.targets, base.dimensions, base.groups
        )
        result = await reranker.rerank(engine, "physics chemistry", candidates, k)
        ids, scores = result.ranking.ids, result.ranking.scores
        assert len(ids) == len(scores) == min(k, size)
        assert len(set(ids)) == len(ids)
        assert set(ids) <= set(found.ids[:size])
        assert np.isfinite(scores).all()
        pairs = list(zip(ids, scores, strict=True))
        assert all(
            a[1] > b[1] or (a[1] == b[1] and a[0] < b[0]) for a, b in itertools.pairwise(pairs)
        )
        assert await reranker.rerank(engine, "physics chemistry", candidates, k) == result


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("magic", {}, "'magic'; choose fair, exposure-aware, mmr, xquad, pm2, fa-ir, deltr, dlf."),
        ("mmr", {"lambda": 1}, "mmr has no option 'lambda'; it has trade_off"),
        ("mmr", {"trade_off": "1.5"}, "option 'trade_off' of mmr is wrong: .*less than or equal"),
        ("mmr", {"trade_off": "much"}, "option 'trade_off' of mmr is wrong: .*valid number"),
        ("mmr", {"trade_off": float("nan")}, "option 'trade_off' of mmr is wrong"),
        ("xquad", {"diversity": 2}, "option 'diversity' of xquad is wrong: .*less than or equal"),
        ("pm2", {"lambda": 1}, "pm2 has no option 'lambda'; it has focus"),
        ("fa-ir", {"alpha": 0}, "option 'alpha' of fa-ir is wrong: .*greater than 0"),
        ("fa-ir", {"proportion": "1"}, "option 'proportion' of fa-ir is wrong: .*less than 1"),
        ("exposure-aware", {"k": 3}, "exposure-aware has no option 'k'; it has none"),
        ("deltr", {}, "'weights' of deltr is wrong: Field required.* that 'fairqr train' wrote"),
        ("dlf", {"weights": "/nowhere/x.json"}, "weights of dlf .No such file.*'fairqr train dlf'"),
        ("deltr", {"weights": "/"}, "/ does not contain weights of deltr"),
    ],
)
def test_wrong_names_and_options_are_said_in_a_sentence(
    name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        open_reranker(name, options)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data | {"format": 9},
        lambda data: data | {"surprise": 1},
        lambda data: {k: v for k, v in data.items() if k != "trained_on"},
        lambda data: data | {"model": data["model"] | {"weights": [1.0]}},
        lambda data: data | {"model": data["model"] | {"scales": [0.0] * 6}},
        lambda data: data | {"model": data["model"] | {"weights": [float("nan")] * 6}},
        lambda data: data | {"model": data["model"] | {"features": list("abcdef")}},
        lambda data: [],
    ],
)
def test_damaged_weights_are_refused(
    damage: Callable[[object], object], weights: dict[str, Path]
) -> None:
    path = weights["deltr"]
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(InputError, match=r"'fairqr train deltr'"):
        open_reranker("deltr", {"weights": path})


def test_weights_of_another_kind_and_files_that_are_none_are_refused(
    weights: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="does not contain weights of dlf"):
        open_reranker("dlf", {"weights": weights["deltr"]})
    (tmp_path / "bytes").write_bytes(b"\xff\x00{")
    with pytest.raises(InputError, match="does not contain weights of deltr"):
        open_reranker("deltr", {"weights": tmp_path / "bytes"})


def test_a_document_belongs_to_the_group_of_its_largest_share() -> None:
    rows = [[1, 0], [0.5, 0.5], [0.4, 0.6], [0, 0], [0.2, 0.1], [0.5, 0.0], [0.3, 0.3]]
    # The last two but one are mostly, and half, unknown; the last is more unknown than either.
    assert group_of_each(np.array(rows, dtype=float)).tolist() == [0, 0, 1, -1, -1, 0, -1]


def test_min_max_of_equal_and_of_extreme_scores() -> None:
    assert min_max([3.0, 3.0]).tolist() == [1.0, 1.0]
    assert min_max([-1e308, 1e308, 0.0]).tolist() == [0.0, 1.0, 0.5]
    assert min_max([]).tolist() == []
