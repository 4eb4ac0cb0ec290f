"""An index with MiniLM's vectors: made by the command, killed and resumed, kept up to date."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fairqr.retrieval.encoders.encoder import Float32Array
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import Query
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import Corpus, find_corpus

FIELDS = ("nuclear physics", "opera", "football", "botany", "sculpture", "law", "chess", "medicine")
COUNT = 1200

pytestmark = pytest.mark.model


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "schema.yaml").write_text(
        "attributes:\n  gender: {field: g, groups: [female, male]}\n"
    )
    lines = [
        {"id": f"d{n}", "title": f"Person {n}", "text": f"Known for {FIELDS[n % 8]}.", "g": "male"}
        for n in range(COUNT)
    ]
    (folder / "people.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return find_corpus(folder / "people.jsonl")


@pytest.fixture
def environment(tmp_path: Path, minilm_cache: Path) -> Mapping[str, str]:
    return {
        **os.environ,
        "FAIRQR_DATA_DIR": str(tmp_path / "data"),
        "FAIRQR_CACHE_DIR": str(minilm_cache),
    }


class Counting(MiniLmEncoder):
    """MiniLM that counts what it encodes."""

    def __init__(self) -> None:
        self.texts = 0

    async def encode_documents(self, texts: Sequence[str]) -> Float32Array:
        self.texts += len(texts)
        return await super().encode_documents(texts)


def manifest(data: Path) -> dict[str, int]:
    """Return the manifest of the vectors, empty until the first are on disk."""
    found = [*data.glob("indexes/people/v*/dense/*/manifest.json")]
    return json.loads(found[-1].read_bytes()) if found else {}


async def test_an_index_whose_encoding_is_killed_goes_on_where_it_stopped(
    tmp_path: Path, corpus: Corpus, environment: Mapping[str, str]
) -> None:
    data = tmp_path / "data"
    command = [sys.executable, "-m", "fairqr", "index", "create", "people", str(corpus.path)]
    process = subprocess.Popen([*command, "--vectors", "minilm"], env=environment)
    pause = threading.Event()
    while not manifest(data) and process.poll() is None:
        pause.wait(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was still encoding"
    kept = manifest(data)["rows"]
    assert 0 < kept < COUNT

    encoder = Counting()
    catalog = Catalog(data)
    await catalog.create("people", corpus, encoder=encoder)
    assert COUNT - kept <= encoder.texts <= COUNT - kept + 2, "and two short texts before"
    assert manifest(data)["rows"] == COUNT
    engine = await catalog.resolve("people", retriever="dense")
    assert engine.retriever == "dense:minilm"
    (hits,) = await engine.search([Query("a singer of arias", 150)])
    assert {int(id_[1:]) % 8 for id_ in hits.ids} == {1}, "all 150 that are known for opera"
    (vectors,) = data.glob("indexes/people/v*/dense/*/vectors")
    assert vectors.stat().st_size == COUNT * 384 * 2


def test_the_command_makes_vectors_and_keeps_them_up_to_date(
    tmp_path: Path, corpus: Corpus, environment: Mapping[str, str]
) -> None:
    def run(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fairqr", *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    small = tmp_path / "small.jsonl"
    lines = corpus.path.read_text().splitlines(keepends=True)
    small.write_text("".join(lines[:40]))
    schema = ("--schema", corpus.path.with_name("schema.yaml"))
    assert "40 documents" in run("index", "create", "people", small, *schema, "--vectors", "minilm")
    assert manifest(tmp_path / "data")["rows"] == 40

    new = {"id": "d3", "title": "A sailor", "text": "Crossed the Atlantic alone.", "g": "female"}
    more = tmp_path / "more.jsonl"
    more.write_text(json.dumps(new) + "\n" + json.dumps({**new, "id": "d99"}) + "\n")
    assert "2 documents written, 41 in all" in run("index", "add", "people", more)
    assert manifest(tmp_path / "data")["rows"] >= 42, "encoded with the documents"

    def found() -> list[str]:
        ask = ("search", "yacht on the ocean", "--corpus", "people", "--attribute", "gender")
        plain = ("--target", "uniform:1", "--method", "plain", "--retriever", "dense", "-k", 40)
        result = json.loads(run(*ask, *plain, "--json"))
        assert result["retriever"] == "dense:minilm"
        return [document["id"] for document in result["ranking"]]

    assert found()[:2] == ["d3", "d99"]
    assert "1 of 1 documents removed, 40 left" in run("index", "remove", "people", "d99")
    assert found()[0] == "d3"
    assert "d99" not in found()
