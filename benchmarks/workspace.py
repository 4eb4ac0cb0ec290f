"""What the benchmarks share: corpora and indexes in a temporary folder, made when first needed."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bare import BareIndex
from generated import write_corpus

from fairqr.retrieval.engines.tantivy.engine import TantivyEngine
from fairqr.retrieval.sources.catalog import Catalog
from fairqr.retrieval.sources.corpus import find_corpus

HERE = Path(__file__).parent


class Workspace:
    """A temporary folder.

    Args:
        folder: Empty; whoever made it removes it.
        quick: Measure on a tenth, for a check that all works.
    """

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.documents = 10_000 if quick else 100_000
        self.bare_folder = folder / "bare"
        self.built: dict[int, dict[str, float]] = {}
        # Nothing of the user's is read or written.
        os.environ["FAIRQR_CONFIG"] = os.devnull
        os.environ["FAIRQR_DATA_DIR"] = str(folder / "data")
        os.environ["FAIRQR_CACHE_DIR"] = str(folder / "cache")
        os.environ.pop("FAIRQR_MODEL", None)
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"
        # Where a proxy is configured, langchain would remark on it.
        os.environ["LANGCHAIN_OPENAI_TCP_KEEPALIVE"] = "0"

    def rounds(self, full: int) -> int:
        """Return how often to time something that a full run times so often."""
        return max(3, full // 5) if self.quick else full

    @functools.cache  # noqa: B019 - lives as long as the process
    def corpus(self, count: int) -> Path:
        """Return the file of a corpus of so many documents."""
        return write_corpus(self.folder / f"corpus{count}", count)

    def build(self, count: int) -> dict[str, float]:
        """Index a corpus in a process of its own, once, and return what that took."""
        if count not in self.built:
            corpus = str(self.corpus(count))
            self.built[count] = self.child("index", corpus, self.name(count))
        return self.built[count]

    def name(self, count: int) -> str:
        """Return the name of the index of so many documents."""
        return f"generated{count}"

    def engine(self) -> TantivyEngine:
        """Open the engine that searches are measured on."""
        self.build(self.documents)
        engine = asyncio.run(Catalog().resolve(self.name(self.documents)))
        assert isinstance(engine, TantivyEngine)
        return engine

    @functools.cache  # noqa: B019
    def bare(self) -> BareIndex:
        """Return the peer of that index, over the same documents."""
        corpus = find_corpus(self.corpus(self.documents))
        return BareIndex.build(self.bare_folder, corpus.documents())

    def child(self, task: str, *arguments: str) -> dict[str, Any]:
        """Run a task of ``child.py`` in a process of its own and return what it reports."""
        command = [sys.executable, str(HERE / "child.py"), task, *arguments]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        report: dict[str, Any] = json.loads(done.stdout)
        return report
