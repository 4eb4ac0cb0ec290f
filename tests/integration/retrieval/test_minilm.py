"""MiniLM with its real weights: the same vectors always, and in an index."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest

from fairqr.base.errors import ModelUnavailableError
from fairqr.retrieval.encoders import minilm as module
from fairqr.retrieval.encoders.encoder import Float32Array
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import Corpus
from fairqr.retrieval.sources.documents import Document
from tests.servers.model_server import Main
from tests.unit.retrieval.embedded import corpus_of

LONG = "A very long text about rivers and their fish. " * 80

# The mean of the last hidden states, scaled to length 1, as transformers and torch compute it from
# the same weights: the first values, and the sum of all 384.
REFERENCE = {
    "physicist": ([-0.07915, 0.01707, 0.00378, 0.13578, -0.04806, -0.03683], 0.4776),
    "Marie Curie\nPhysicist and chemist, born in Warsaw in 1867, who discovered polonium and "
    "radium.": ([-0.07088, 0.04699, -0.02716, 0.12018, 0.03235, 0.01222], 0.2049),
    "Ωμέγα 日本 🎻 naïve": ([-0.06116, 0.13215, 0.07072, 0.01092, -0.01854, 0.01819], -0.5238),
    LONG: ([-0.00198, 0.08124, 0.04483, -0.04704, -0.02673, 0.05921], -0.9453),
}
TEXTS = [*REFERENCE, "a nuclear scientist", "a football player", "x" * 3000, "🎻"]

FIELDS = ("nuclear physics", "opera", "football", "botany", "sculpture", "law", "chess", "medicine")
COUNT = 1200

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def _weights(clean_environment: Path, minilm_cache: Path) -> None:
    module._load.cache_clear()


async def test_nothing_is_encoded_for_whoever_has_left() -> None:
    """The processor rests at once; what others ask for meanwhile is answered."""
    encoder = MiniLmEncoder()
    await encoder.encode_query("a first text, which loads the weights")
    long = asyncio.create_task(encoder.encode_documents([f"{LONG} {n}" for n in range(1000)]))
    await asyncio.sleep(0.1)
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    await encoder.encode_query("physicist")
    started = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - started < 0.25


async def test_the_vectors_are_those_of_the_reference() -> None:
    """The last text is cut at 256 tokens, as the reference cuts it."""
    rows = await open_encoder("minilm").encode_documents(list(REFERENCE))
    for row, (first, total) in zip(np.asarray(rows), REFERENCE.values(), strict=True):
        assert row[:6] == pytest.approx(first, abs=1e-5)
        assert row.sum() == pytest.approx(total, abs=2e-4)
        assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6)


@pytest.mark.promise("labels")
async def test_a_vector_has_the_same_bits_alone_and_in_parallel() -> None:
    """A vector depends on its text and encoder alone, not on its neighbours."""
    encoder = open_encoder("minilm")
    together = np.asarray(await encoder.encode_documents(TEXTS * 4))
    several = await asyncio.gather(*(encoder.encode_query(text) for text in TEXTS))
    for number, text in enumerate(TEXTS):
        alone = np.asarray(await encoder.encode_query(text)).tobytes()
        assert alone == np.asarray(several[number]).tobytes()
        assert {alone} == {row.tobytes() for row in together[number :: len(TEXTS)]}


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
async def test_wrong_or_half_weights_are_one_sentence(minilm_cache: Path, name: str) -> None:
    """Files that are cut, or of the right size with another content."""
    place = minilm_cache / "weights/minilm" / name
    size = place.stat().st_size
    place.unlink()
    for content, says in ((b"x" * size, "cannot be loaded .*"), (b"x", "is not installed")):
        place.write_bytes(content)
        with pytest.raises(ModelUnavailableError, match=f"{says}; run .*models pull minilm"):
            await open_encoder("minilm").encode_query("a")


async def test_without_the_extra_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    said = r"loaded \(.*onnxruntime.*\); run pip install 'fairqr\[dense\]' and .*, or choose"
    with pytest.raises(ModelUnavailableError, match=said):
        await open_encoder("minilm").encode_query("a")


def test_the_graph_is_that_of_the_tool(tmp_path: Path) -> None:
    """What the package ships is what ``tools/minilm`` writes, byte for byte."""
    pytest.importorskip("onnx")
    tools, made = Path(__file__).parents[3] / "tools", tmp_path / "made.onnx"
    subprocess.run([sys.executable, "-m", "minilm.build", made], cwd=tools, check=True)
    assert made.read_bytes() == module.GRAPH.read_bytes()


# --- an index -----------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    texts = [f"Known for {FIELDS[n % 8]}." for n in range(COUNT)]
    return corpus_of(
        tmp_path / "corpus", [Document(f"d{n}", f"Person {n}", it) for n, it in enumerate(texts)]
    )


class Counting(MiniLmEncoder):
    """MiniLM that counts what it encodes."""

    def __init__(self) -> None:
        self.texts = 0

    async def encode_documents(self, texts: Sequence[str]) -> Float32Array:
        self.texts += len(texts)
        return await super().encode_documents(texts)


def kept(cache: Path) -> int:
    """Return how many vectors a cache folder holds."""
    place = f"file:{cache / 'vectors.sqlite'}?mode=ro"
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(place, uri=True)) as connection,
    ):
        (count,) = connection.execute("SELECT count(*) FROM kept").fetchone()
        return int(count)
    return 0


def rows(data: Path) -> int:
    """Return how many rows the vectors of the index have."""
    (path,) = data.glob("indexes/people/v*/dense/*/vectors")
    with path.open("rb") as stream:
        _, vectors = np.load(stream), np.load(stream)
    return len(vectors)


@pytest.mark.promise("labels")
async def test_killed_encoding_goes_on_where_it_stopped(
    tmp_path: Path, corpus: Corpus, minilm_cache: Path
) -> None:
    """Encoding goes on where it was killed."""
    data = tmp_path / "data"
    command = [sys.executable, "-m", "fairqr", "index", "create", "people", str(corpus.path)]
    process = subprocess.Popen([*command, "--vectors", "minilm"])
    pause = threading.Event()
    while not kept(minilm_cache) and process.poll() is None:
        pause.wait(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was still encoding"
    before = kept(minilm_cache)
    assert 0 < before < COUNT

    encoder = Counting()
    catalog = Catalog(data)
    await catalog.create("people", corpus, encoder=encoder)
    assert COUNT - before <= encoder.texts <= COUNT - before + 2, "and two short texts before"
    assert rows(data) == COUNT
    engine = await catalog.resolve("people", retriever="dense")
    assert engine.retriever == "dense:minilm"
    (hits,) = await engine.search([Query("a singer of arias", 150)])
    assert {int(id_[1:]) % 8 for id_ in hits.ids} == {1}, "all 150 that are known for opera"


def test_the_command_makes_vectors_and_keeps_them_up_to_date(
    tmp_path: Path, corpus: Corpus, quick: Main
) -> None:
    small, more = tmp_path / "small.jsonl", tmp_path / "more.jsonl"
    small.write_text("".join(corpus.path.read_text().splitlines(keepends=True)[:40]))
    schema = ("--schema", corpus.path.with_name("schema.yaml"), "--vectors", "minilm")
    assert "40 documents" in quick("index", "create", "people", small, *schema).stdout
    assert rows(tmp_path / "data") == 40
    new = {"title": "A sailor", "text": "Crossed the Atlantic alone."}
    more.write_text("".join(json.dumps({**new, "id": it}) + "\n" for it in ("d3", "d99")))
    assert "2 documents written" in quick("index", "add", "people", more).stdout

    def found() -> list[str]:
        ask = ("search", "yacht on the ocean", "--corpus", "people", "--attribute", "gender")
        plain = (
            "--target",
            "uniform:1",
            "--method",
            "baseline",
            "--retriever",
            "dense",
            "-k",
            "40",
        )
        result = quick(*ask, *plain, "--json").result
        assert result["retriever"] == "dense:minilm"
        return [document["id"] for document in result["ranking"]]

    assert found()[:2] == ["d3", "d99"]
    assert rows(tmp_path / "data") >= 42, "encoded by the search"
    removed = quick("index", "remove", "people", "d99").stdout
    assert "1 of 1 documents removed" in removed
    assert found()[0] == "d3"
    assert "d99" not in found()
    assert quick("index", "delete", "people").stdout == "people: deleted\n"
