"""The folder of a Fair RAG experiment, and its records: one for each policy on each query.

The gain of a document is the utility of the answer that saw it alone, less the utility of the
answer that saw none (the Fair RAG paper, §3.1). It is useful if its gain is positive. So labels
belong to a task and a generator, and are what a policy of their own leaves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field

from fairqr.evaluation.experiments.folder import Folder, FolderManifest, Lines, Record
from fairqr.evaluation.rag.specification import FairRagExperiment, Policy
from fairqr.retrieval.fairness.exposure import FloatArray


class AnswerRecord(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What was generated from one ranking, and what it used.

    Attributes:
        ranking: The first k, as positions in the pool.
        times: How many of the generated samples had this ranking.
        status: ``ok``, or why there is no answer; ``given`` if a label came without one.
        text: The answer; empty unless ``ok``.
        utility: An answer that is ``empty`` is worth 0; None if there is none.
        used: For each document of the ranking whether the answer used it; None if it could not
            be judged. Empty if nothing judged.
    """

    ranking: tuple[int, ...]
    times: int = Field(1, ge=1)
    status: str
    text: str = ""
    utility: float | None = None
    used: tuple[bool | None, ...] = ()


class PolicyRecord(Record, allow_inf_nan=False):
    """A policy on one query.

    Attributes:
        collection, generator, retriever, policy, alpha, seed, query: Which one. The retriever is
            empty for the oracle and for labels, and only policies that draw from scores have an α.
        pool: The ids of the documents, to which all positions refer.
        useful: The positions of the documents that are useful to this generator.
        k: How many documents the generator reads.
        samples: The rankings that were drawn, each cut at min(k, n); one for ``deterministic``,
            none for labels.
        answers: For the distinct rankings among the first samples, those that were generated from.
        model_calls, tokens, milliseconds: What the answers and their attribution cost; a ranking
            that another policy had before costs nothing again.
        failure: Why there is nothing; empty if there is.
    """

    keys = ("collection", "generator", "retriever", "policy", "alpha", "seed", "query")

    collection: str
    generator: str
    retriever: str
    policy: Policy
    alpha: float | None
    seed: int
    query: str
    pool: tuple[str, ...] = ()
    useful: tuple[int, ...] = ()
    k: int = Field(ge=1)
    samples: tuple[tuple[int, ...], ...] = ()
    answers: tuple[AnswerRecord, ...] = ()
    model_calls: int = 0
    tokens: int = 0
    milliseconds: float = 0.0
    failure: str = ""

    @property
    def gains(self) -> FloatArray:
        """The gain of each document of a label's pool, shape (n,); NaN where there is none."""
        utilities = np.array([answer.utility for answer in self.answers], dtype=np.float64)
        return np.asarray(utilities[1:] - utilities[:1])

    def why_dropped(self, min_useful: int) -> str:
        """Return why an experiment leaves out the query of a label; empty if it keeps it."""
        if self.answers[0].utility is None:
            return "the answer without documents failed"
        if len(self.useful) < min_useful:
            return f"fewer than {min_useful} useful documents"
        return ""


class RagManifest(FolderManifest):
    """What an experiment was run with.

    Attributes:
        experiment: The file, with what the command changed.
        collections: The fingerprint of each collection, by name, in the order of the experiment.
        prompts: The SHA-256 of each prompt that asks for answers, by ``id=version``.
        attributor: What judged, as it names itself; empty where nothing did.
        labels: The SHA-256 of each file of labels that was imported.
        notes: Sentences about how the run was made, for the report.
    """

    experiment: FairRagExperiment
    collections: dict[str, str]
    prompts: dict[str, str]
    attributor: str
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class RagStore(Folder[RagManifest]):
    """The folder of an experiment: ``experiment.json`` and ``records.jsonl``."""

    manifest_type = RagManifest

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lines = Lines(folder / "records.jsonl", PolicyRecord)
