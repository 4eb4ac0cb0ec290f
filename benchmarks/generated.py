"""Generated documents: made-up words in Zipfian frequencies, with groups. Equal on every run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SEED = 20250
WORDS = 50_000
SHORTEST = 20
LONGEST = 200
"""How many words a document has."""

GENDERS = ("female", "male")
REGIONS = tuple(f"region{letter}" for letter in "ABCDEFGH")
GENDER_SHARES = (0.25, 0.70, 0.05)
REGION_SHARES = (0.40, 0.20, 0.13, 0.09, 0.07, 0.05, 0.04, 0.02)


def _attribute(name: str, groups: tuple[str, ...]) -> dict[str, Any]:
    """Return an attribute with groups that are equally large in the population."""
    return {
        "field": name,
        "groups": list(groups),
        "population": dict.fromkeys(groups, 1 / len(groups)),
        "unknown": "exclude",
    }


SCHEMA = {
    "attributes": {
        "gender": _attribute("gender", GENDERS),
        "region": _attribute("region", REGIONS),
    }
}


def _words() -> list[str]:
    """Return the vocabulary, the most frequent word first."""
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    random = np.random.default_rng(SEED)
    short = ["".join(pair) for pair in itertools.product(syllables, repeat=2)]
    long = ["".join(triple) for triple in itertools.product(syllables, repeat=3)]
    chosen = random.choice(len(long), WORDS - len(short), replace=False)
    frequent = [short[position] for position in random.permutation(len(short))]
    rare = [long[position] for position in chosen]
    return frequent + rare


def group_words(group: str) -> list[str]:
    """Return words that only documents of a group have, as a model would propose them."""
    endings = itertools.product("bdfg", "aeiouy")
    return [f"{group.lower()}ish{first}{second}" for first, second in endings]


def _rows(count: int) -> Iterator[dict[str, Any]]:
    """Yield documents as a corpus has them."""
    random = np.random.default_rng(SEED + 1)
    words = np.array(_words(), dtype=object)
    # By Zipf's law, the frequency of a word is the inverse of its rank.
    cumulated = np.cumsum(1 / np.arange(1, WORDS + 1))
    words_of_groups = {group: group_words(group) for group in (*GENDERS, *REGIONS)}
    genders = random.choice(np.array([*GENDERS, None]), count, p=GENDER_SHARES)
    regions = random.choice(np.array(REGIONS), count, p=REGION_SHARES)
    for row, (gender, region) in enumerate(zip(genders, regions, strict=True)):
        length = random.integers(SHORTEST, LONGEST + 1)
        drawn = random.random(length) * cumulated[-1]
        text = words[np.searchsorted(cumulated, drawn)].tolist()
        for group in (gender, region):
            if group:
                text.append(random.choice(words_of_groups[group]))
        yield {
            "id": f"d{row:07}",
            "title": " ".join(text[:2]),
            "text": " ".join(text[2:]),
            "gender": gender,
            "region": region,
        }


def write_corpus(folder: Path, count: int) -> Path:
    """Write a corpus of so many documents with its schema, and return the path of the documents."""
    folder.mkdir(parents=True)
    (folder / "schema.yaml").write_text(json.dumps(SCHEMA), encoding="utf-8")
    path = folder / "documents.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in _rows(count))
    return path


def queries(count: int, terms: int = 10) -> list[str]:
    """Return distinct queries: words of medium and low frequency, as people search for."""
    random = np.random.default_rng(SEED - 1)
    words = _words()
    log_ranks = random.uniform(np.log(30), np.log(10_000), (count, terms))
    ranks = np.exp(log_ranks).astype(int)
    texts = []
    for row in ranks:
        texts.append(" ".join(words[rank] for rank in row))
    return texts
