"""Vectors of texts in the user's cache: no text is encoded twice, and no model gets another's."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from fairqr.retrieval.encoders.encoder import EncoderMark, encode_documents
from fairqr.retrieval.encoders.kept_vectors import AT_ONCE, KeptVectors
from tests.unit.retrieval.vector_encoders import CountingEncoder

TEXTS = [f"text number {number}" for number in range(AT_ONCE + 9)]


async def opened(path: Path, encoder: CountingEncoder) -> KeptVectors:
    kept = KeptVectors(encoder, await EncoderMark.of(encoder), path)
    encoder.taken()
    return kept


async def test_vectors_are_the_encoders_and_each_text_is_encoded_once(tmp_path: Path) -> None:
    path, encoder = tmp_path / "v.sqlite", CountingEncoder()
    kept = await opened(path, encoder)
    wanted = await encode_documents(encoder, TEXTS)
    encoder.taken()
    found = await kept.encode([*TEXTS[:9], *TEXTS[:9], " "])
    assert np.array_equal(found[:9], wanted[:9])
    assert np.array_equal(found[9:18], wanted[:9])
    assert sorted(encoder.taken()) == sorted(TEXTS[:9])
    again = await opened(path, encoder)
    assert np.array_equal(await again.encode(TEXTS), wanted)
    assert sorted(encoder.taken()) == sorted(TEXTS[9:])
    assert not (await again.encode([" "])).any()
    assert (await again.encode([])).shape == (0, 8)


@pytest.mark.parametrize("other", [CountingEncoder("others"), CountingEncoder(salt="other")])
async def test_another_model_has_vectors_of_its_own(tmp_path: Path, other: CountingEncoder) -> None:
    """Also one of the same name, which encodes the probe otherwise."""
    path, encoder = tmp_path / "v.sqlite", CountingEncoder()
    await (await opened(path, encoder)).encode(TEXTS[:3])
    found = await (await opened(path, other)).encode(TEXTS[:3])
    assert np.array_equal(found, await encode_documents(other, TEXTS[:3]))


async def test_a_damaged_file_forgets(tmp_path: Path) -> None:
    path, encoder = tmp_path / "v.sqlite", CountingEncoder()
    kept = await opened(path, encoder)
    wanted = await kept.encode(TEXTS[:3])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE kept SET value = x'00'")
    connection.close()
    assert np.array_equal(await kept.encode(TEXTS[:3]), wanted)
    path.write_bytes(b"no database" * 1000)
    assert np.array_equal(await kept.encode(TEXTS[:3]), wanted)
