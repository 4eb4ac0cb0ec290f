"""Generated documents: made-up words in Zipfian frequencies, with groups. Equal on every run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from fairqr.retrieval.sources.documents import Document

SEED = 20250
WORDS = 50_000
SHORTEST, LONGEST = 20, 200
AT_ONCE = 2_000
GROUP_WORDS = 24

GENDERS = ("female", "male")
REGIONS = tuple(f"region{letter}" for letter in "ABCDEFGH")
GENDER_SHARES = (0.25, 0.70, 0.05)
REGION_SHARES = (0.40, 0.20, 0.13, 0.09, 0.07, 0.05, 0.04, 0.02)

SCHEMA = f"""attributes:
  gender:
    field: gender
    groups: [{", ".join(GENDERS)}]
    population: {{female: 0.5, male: 0.5}}
    unknown: exclude
  region:
    field: region
    groups: [{", ".join(REGIONS)}]
    population: {{{", ".join(f"{region}: 0.125" for region in REGIONS)}}}
    unknown: exclude
"""


def _words() -> list[str]:
    """Return the vocabulary, the most frequent word first."""
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    random = np.random.default_rng(SEED)
    short = ["".join(pair) for pair in itertools.product(syllables, repeat=2)]
    long = ["".join(triple) for triple in itertools.product(syllables, repeat=3)]
    chosen = random.choice(len(long), WORDS - len(short), replace=False)
    return [short[i] for i in random.permutation(len(short))] + [long[i] for i in chosen]


def group_words(group: str) -> list[str]:
    """Return words that only documents of a group have, as a model would propose them."""
    return [f"{group.lower()}ish{first}{second}" for first in "bdfg" for second in "aeiouy"]


def _rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    random = np.random.default_rng(seed)
    words = np.array(_words(), dtype=object)
    frequency = 1 / np.arange(1, WORDS + 1)
    cumulated = np.cumsum(frequency / frequency.sum())
    genders = (*GENDERS, None)
    special = {group: group_words(group) for group in (*GENDERS, *REGIONS)}
    for start in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - start)
        lengths = random.integers(SHORTEST, LONGEST + 1, size)
        tokens = words[np.searchsorted(cumulated, random.random(lengths.sum()))]
        gender = random.choice(len(genders), size, p=GENDER_SHARES)
        region = random.choice(len(REGIONS), size, p=REGION_SHARES)
        picks = random.integers(0, GROUP_WORDS, (size, 2))
        ends = np.cumsum(lengths)
        for row, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            text = tokens[end - length : end].tolist()
            row_gender, row_region = genders[gender[row]], REGIONS[region[row]]
            if row_gender:
                text.append(special[row_gender][picks[row, 0]])
            text.append(special[row_region][picks[row, 1]])
            yield {
                "id": f"d{start + row:07}",
                "title": " ".join(text[:2]),
                "text": " ".join(text[2:]),
                "gender": row_gender,
                "region": row_region,
            }


def write_corpus(folder: Path, count: int) -> Path:
    """Write a corpus of so many documents with its schema, and return the path of the documents."""
    folder.mkdir(parents=True)
    (folder / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    path = folder / "documents.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for row in _rows(count, SEED + 1):
            stream.write(json.dumps(row) + "\n")
    return path


def documents(count: int, seed: int) -> list[Document]:
    """Return new documents, with ids that the corpus of at least so many documents has too."""
    made = []
    for row in _rows(count, SEED + 2 + seed):
        fields = {"gender": row["gender"], "region": row["region"]}
        made.append(Document(row["id"], row["title"], row["text"], fields))
    return made


def queries(count: int, terms: int = 10) -> list[str]:
    """Return distinct queries: words of medium and low frequency, as people search for."""
    random = np.random.default_rng(SEED - 1)
    words = _words()
    ranks = np.exp(random.uniform(np.log(30), np.log(10_000), (count, terms))).astype(int)
    return [" ".join(words[rank] for rank in row) for row in ranks]
