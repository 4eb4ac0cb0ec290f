"""MiniLM with its real weights: the reference's vectors, the same bits always, and half weights."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairqr import FairSearch
from fairqr.base.errors import ModelUnavailableError
from fairqr.retrieval.encoders import minilm as module
from fairqr.retrieval.encoders.encoder import encode_query
from fairqr.retrieval.encoders.opening import open_encoder
from tests.integration.model_server import write_people

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

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def _weights(minilm_cache: Path) -> None:
    module._load.cache_clear()


async def test_the_vectors_are_those_of_the_reference() -> None:
    """The last text is cut at 256 tokens, as the reference cuts it."""
    rows = await open_encoder("minilm").encode_documents(list(REFERENCE))
    for row, (first, total) in zip(np.asarray(rows), REFERENCE.values(), strict=True):
        assert row[:6] == pytest.approx(first, abs=1e-5)
        assert row.sum() == pytest.approx(total, abs=2e-4)
        assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6)


async def test_a_vector_has_the_same_bits_alone_and_in_parallel() -> None:
    encoder = open_encoder("minilm")
    together = np.asarray(await encoder.encode_documents(TEXTS * 4))
    several = await asyncio.gather(*(encoder.encode_query(text) for text in TEXTS))
    for number, text in enumerate(TEXTS):
        alone = np.asarray(await encoder.encode_query(text)).tobytes()
        assert alone == np.asarray(several[number]).tobytes()
        assert {alone} == {row.tobytes() for row in together[number :: len(TEXTS)]}


async def test_any_query_has_a_vector() -> None:
    encoder = open_encoder("minilm")
    for text in ("half \ud800 a pair", "x" * 200_000, "\x00", "🎻"):
        assert np.linalg.norm(await encode_query(encoder, text, 384)) == pytest.approx(1, abs=1e-5)


async def test_auto_is_the_hybrid_but_words_for_the_papers_loop(
    minilm_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    corpus = write_people(tmp_path)
    paper: dict[str, Any] = {"method": "fair-qr", "attribute": "gender", "k": 5}
    async with FairSearch.open(corpus, "feedback") as search:
        ours = await search.search("physicist", attribute="gender", k=5)
        papers = [await search.search("physicist", **paper) for _ in range(2)]
    assert ours.retriever == "hybrid-pool:minilm"
    assert [result.retriever for result in papers] == ["bm25", "bm25"]
    async with FairSearch.open(corpus, "feedback", retriever="hybrid") as search:
        asked_for = await search.search("physicist", **paper)
    assert asked_for.retriever == "hybrid-pool:minilm"


@pytest.mark.parametrize(
    ("name", "broken", "says"),
    [
        ("model.safetensors", None, "is not installed; run .*models pull minilm"),
        ("model.safetensors", slice(0, 1000), "is not installed; run .*models pull minilm"),
        ("tokenizer.json", slice(0, 1000), "is not installed; run .*models pull minilm"),
        ("model.safetensors", b"x", "cannot be loaded .*; run .*'fairqr models pull minilm'"),
        ("model.safetensors", b"\x00", "cannot be loaded .*; run .*'fairqr models pull minilm'"),
        ("tokenizer.json", b"x", "cannot be loaded .*; run .*'fairqr models pull minilm'"),
    ],
)
async def test_wrong_or_half_weights_are_one_sentence(
    minilm_cache: Path, pulled_minilm: Path, name: str, broken: slice | bytes | None, says: str
) -> None:
    """Files that are missing, cut, or of the right size with another content."""
    whole = pulled_minilm.with_name(name).read_bytes()
    place = minilm_cache / "weights/minilm" / name
    place.unlink()
    if isinstance(broken, slice):
        place.write_bytes(whole[broken])
    elif broken is not None:
        place.write_bytes(broken * len(whole))
    with pytest.raises(ModelUnavailableError, match=says) as caught:
        await open_encoder("minilm").encode_query("a")
    assert "\n" not in str(caught.value)


def test_without_the_extra_one_sentence_says_what_to_install(minilm_cache: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import asyncio, sys\n"
            "sys.modules['onnxruntime'] = None  # as if it were not installed\n"
            "from fairqr.base.errors import ModelUnavailableError\n"
            "from fairqr.retrieval.encoders.opening import open_encoder\n"
            "try: asyncio.run(open_encoder('minilm').encode_query('a'))\n"
            "except ModelUnavailableError as error: print(error)\n",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.fullmatch(
        r"The encoder 'minilm' cannot be loaded \(.*onnxruntime.*\); run pip install "
        r"'fairqr\[dense\]' and .*, or choose another retriever\.\n",
        done.stdout + done.stderr,
    )


def test_the_graph_is_that_of_the_tool(tmp_path: Path) -> None:
    """What the package ships is what ``tools/minilm`` writes, byte for byte."""
    pytest.importorskip("onnx")
    tools = Path(__file__).parents[3] / "tools"
    copied = tmp_path / "tools"
    shutil.copytree(tools / "minilm", copied / "minilm")
    made = tmp_path / "made.onnx"
    subprocess.run([sys.executable, "-m", "minilm.build", made], cwd=copied, check=True)
    assert made.read_bytes() == module.GRAPH.read_bytes()
