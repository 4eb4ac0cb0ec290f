"""How near copies are by MiniLM, and how near others: what the cosine of near duplicates rests on.

``python -m benchmarks.near_duplicates notables trec2022 -o FOLDER`` encodes the collections first.
It compares all pairs of their documents, none of which is a copy, and copies of a hundred documents
with the documents themselves, for each kind of edit. The figures stand in ``measures.csv``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.measuring import over_collections
from fairqr.evaluation.collections.finding import find_collection
from fairqr.retrieval.encoders.encoder import Float32Array, KeptVectors, text_of
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.fairness.claims import ALIKE
from fairqr.retrieval.sources.documents import Document

COPIED = 100
AT_ONCE = 1000
OFFER = "Contact us today for more details and the best price, with free shipping."
SENTENCE = re.compile(r"(?<=[.!?]) ")

Edit = Callable[[str, random.Random], str]


def with_offer(text: str, draw: random.Random) -> str:
    """Return a text with a sentence added."""
    return f"{text} {OFFER}"


def reordered(text: str, draw: random.Random) -> str:
    """Return a text with its sentences in another order."""
    sentences = SENTENCE.split(text)
    return " ".join(draw.sample(sentences, len(sentences)))


def shortened(text: str, draw: random.Random) -> str:
    """Return a text without one of its sentences, if it has several."""
    sentences = SENTENCE.split(text)
    if len(sentences) > 1:
        del sentences[draw.randrange(len(sentences))]
    return " ".join(sentences)


def replacing(share: float) -> Edit:
    """Return an edit that replaces a share of the words by those of an offer."""

    def replaced(text: str, draw: random.Random) -> str:
        words = text.split()
        for position in draw.sample(range(len(words)), round(share * len(words))):
            words[position] = draw.choice(OFFER.split())
        return " ".join(words)

    return replaced


EDITS: Mapping[str, Edit] = {
    "a sentence added": with_offer,
    "sentences in another order": reordered,
    "a sentence left out": shortened,
    "one word in twenty replaced": replacing(0.05),
    "one word in ten replaced": replacing(0.1),
}


def pairs(vectors: Float32Array) -> tuple[float, int]:
    """Return the highest cosine of two documents, and how many pairs are near duplicates."""
    highest = 0.0
    near = 0
    for start in range(0, len(vectors), AT_ONCE):
        chunk = vectors[start : start + AT_ONCE]
        # Above the diagonal, each pair stands once.
        cosines = np.triu(chunk @ vectors.T, start + 1)
        highest = max(highest, float(cosines.max()))
        near += int((cosines >= ALIKE).sum())
    return highest, near


async def measure(name: str) -> list[tuple[str, str, float]]:
    """Return the figures of a collection: of others and of copies, each with its measure."""
    encoder = await KeptVectors.of(MiniLmEncoder())
    documents = list(find_collection(name).corpus.documents())
    vectors = await encoder.encode([*map(text_of, documents)])
    highest, near = pairs(vectors[vectors.any(axis=1)])
    rows = [("others", "highest cosine", highest), ("others", "pairs", float(near))]

    draw = random.Random(0)
    chosen = draw.sample(range(len(documents)), COPIED)
    for edit, change in EDITS.items():
        copies = []
        for row in chosen:
            document = documents[row]
            copies.append(Document("", document.title, change(document.text, draw)))
        encoded = await encoder.encode([*map(text_of, copies)])
        cosines = np.vecdot(encoded, vectors[chosen])
        rows.append((edit, "near duplicates", float((cosines >= ALIKE).mean())))
        rows.append((edit, "median cosine", float(np.median(cosines))))
    return rows


async def main(names: Sequence[str], folder: Path) -> None:
    """Keep the figures of collections."""
    frames = []
    for name in names:
        rows = pd.DataFrame(await measure(name), columns=["of", "measure", "value"])
        frames.append(rows.assign(on=name))
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(frames).to_csv(folder / "measures.csv", index=False)


if __name__ == "__main__":
    over_collections(__doc__, main)
