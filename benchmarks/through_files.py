"""Expected exposure by item as evaluation tools compute it: from JSON files into dictionaries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


def exposure_through_files(
    folder: Path, samples: Sequence[Sequence[int]], useful: Sequence[bool]
) -> tuple[float, float, float]:
    """Return EE-D, EE-R and EE-L of the machine user.

    Rankings and judgements are written by one half and read by the other, as where a sampler and a
    measure are programs of their own. Items are named by text.
    """
    rankings, judgements = folder / "rankings.json", folder / "judgements.json"
    _write(rankings, judgements, samples, useful)
    return _measure(rankings, judgements)


def _write(
    rankings: Path, judgements: Path, samples: Sequence[Sequence[int]], useful: Sequence[bool]
) -> None:
    ranks = {
        f"sample{number}": {f"d{item}": rank for rank, item in enumerate(sample, start=1)}
        for number, sample in enumerate(samples)
    }
    rankings.write_text(json.dumps(ranks), encoding="utf-8")
    labels = {f"d{item}": int(label) for item, label in enumerate(useful)}
    judgements.write_text(json.dumps(labels), encoding="utf-8")


def _measure(rankings: Path, judgements: Path) -> tuple[float, float, float]:
    ranks = json.loads(rankings.read_text(encoding="utf-8"))
    labels = json.loads(judgements.read_text(encoding="utf-8"))
    system = dict.fromkeys(labels, 0.0)
    for sample in ranks.values():
        for item in sample:
            system[item] += 1 / len(ranks)
    n, m, k = len(labels), sum(labels.values()), max(map(len, ranks.values()))
    high, low = (1.0, (k - m) / (n - m)) if m <= k else (k / m, 0.0)
    target = {item: high if label else low for item, label in labels.items()}
    disparity = sum(gained**2 for gained in system.values())
    relevance = sum(gained * target[item] for item, gained in system.items())
    loss = sum((gained - target[item]) ** 2 for item, gained in system.items())
    return disparity, relevance, loss
