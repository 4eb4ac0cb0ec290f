"""Answers of a model from what an engine shows: which documents are read, cited and used.

A sample of the queries is asked as questions. The model reads the first documents that the engine
showed for the query, in their order, and gives the numbers of those that its answer comes from. An
attributor judges which of them the answer can rest on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairqr.agents.attribution.verdicts import Attributor, Pair, Verdict, hypothesis_of
from fairqr.agents.generators import GenerationRequest, Generator
from fairqr.base.errors import SourceError
from fairqr.evaluation.audit.bundle import AuditFolder
from fairqr.evaluation.audit.estimates import Estimate, shares, within
from fairqr.evaluation.audit.parts import Part
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.audit.records import AnsweredQuery, Observation
from fairqr.evaluation.experiments.engine import Absence, Done
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.table import CodedMemberships, decoded

__all__ = [
    "PROMPT",
    "STAGES",
    "AnswerFigures",
    "Answers",
    "GroupStages",
    "cited_in",
    "measure_answers",
]

PROMPT = "cited_answer"
"""The id of the prompt."""

STAGES = ("retrieved", "read", "cited", "used")
"""What documents go through, in order."""

LOOKED_AT = 20
"""If the documents of so many queries have no text, the texts are not there."""

_CITATION = re.compile(r"\[(\s*\d+(?:\s*[,;]\s*\d+)*\s*)\]")


@dataclass(frozen=True)
class Answers(Part[AuditQuery, AnsweredQuery]):
    """The questions to a model.

    Attributes:
        engine: Gives the texts of the documents.
        generator: Answers; it has been started.
        attributor: Judges what an answer used; it has been started.
        prompt: Asks for answers with citations.
        shown: How many documents count as shown.
        read: How many of them the model reads.
        tasks: The sample of the queries.
    """

    name = title = "answers"
    record = AnsweredQuery

    engine: SearchEngine
    generator: Generator
    attributor: Attributor
    prompt: PromptTemplate
    shown: int
    read: int
    tasks: tuple[AuditQuery, ...]

    @property
    def asked(self) -> str:
        """The model."""
        return self.generator.name

    def cost(self, done: int = 0) -> str:
        """Say how many questions and judgements are left."""
        left = len(self.tasks) - done
        return (
            f"at most {left:,} {'question' if left == 1 else 'questions'} for "
            f"'{self.generator.name}', each with {self.read:,} documents, and "
            f"{left * self.read:,} judgements by '{self.attributor.name}'"
        )

    async def start(self, folder: AuditFolder) -> None:
        """Look at the documents of a few queries before a model is asked.

        Raises:
            SourceError: None of them has a text.
        """
        every = (folder.observed(query.id) for query in self.tasks)
        answered = [it for it in every if it.status == "ok"][:LOOKED_AT]
        for observation in answered:
            if any(map(_premise, await self._documents(observation))):
                return
        if answered:
            raise SourceError(
                f"'{self.engine.name}' gives no texts, so a model has nothing to read; name the "
                "fields of its texts, or leave --answers out."
            )

    async def do(self, task: AuditQuery, folder: AuditFolder) -> Done[AnsweredQuery]:
        """Ask for one answer, and judge it."""
        observed = folder.observed(task.id)
        if observed.status != "ok":  # There is nothing to read.
            return Done(AnsweredQuery(query=task.id, status="empty"), (None,))
        documents = await self._documents(observed)
        request = GenerationRequest(
            self.prompt,
            task.text,
            [_fields(it, number) for number, it in enumerate(documents, start=1)],
        )
        reply = await self.generator.generate(request)
        if reply.status not in ("ok", "empty"):
            failed = AnsweredQuery(query=task.id, status="failed", message=reply.message)
            return Done(failed, (Absence(reply.status, reply.message),), usage=reply.usage)
        if not reply.text:
            empty = AnsweredQuery(query=task.id, status="empty")
            return Done(empty, (None,), usage=reply.usage)
        verdicts = await self._judged(reply.text, documents)
        size = min(self.shown, len(observed.ids))
        record = AnsweredQuery(
            query=task.id,
            status="ok",
            cited=cited_in(reply.text, len(documents)),
            used=tuple(verdict.attributed for verdict in verdicts),
            shown={
                name: CodedMemberships(patterns=it["patterns"], rows=it["rows"][:size])
                for name, it in observed.groups.items()
            },
        )
        usage = sum((verdict.usage for verdict in verdicts), reply.usage)
        return Done(record, (None,), usage=usage)

    async def _documents(self, observed: Observation) -> list[Document | None]:
        """Return the documents that the model reads; None for one that the engine lacks by now."""
        ids = observed.ids[: self.read]
        found = {it.id: it for it in await self.engine.documents(ids)}
        return [found.get(id_) for id_ in ids]

    async def _judged(self, answer: str, documents: Sequence[Document | None]) -> list[Verdict]:
        hypothesis = hypothesis_of(_CITATION.sub("", answer))
        texts = [_premise(document) for document in documents]
        judged = iter(await self.attributor.judge([Pair(it, hypothesis) for it in texts if it]))
        return [next(judged) if text else Verdict("empty_document") for text in texts]


def cited_in(answer: str, documents: int) -> tuple[bool, ...]:
    """Return for each document whether an answer names it, as ``[1]`` or ``[1, 2]``.

    Args:
        answer: The text.
        documents: How many there are; they are numbered from 1 on.
    """
    numbers = {int(it) for held in _CITATION.findall(answer) for it in re.findall(r"\d+", held)}
    return tuple(number in numbers for number in range(1, documents + 1))


def _fields(document: Document | None, number: int) -> dict[str, str]:
    title, text = (document.title, document.text) if document else ("", "")
    return {"number": str(number), "title": title, "text": text}


def _premise(document: Document | None) -> str:
    parts = (document.title, document.text) if document else ()
    return "\n".join(part.strip() for part in parts if part.strip())


@dataclass(frozen=True, slots=True)
class GroupStages:
    """A group on the way to the answers: its share of the documents with a label at each stage.

    Attributes:
        attribute: The attribute.
        group: The group.
        retrieved: Among the documents that the engine showed.
        read: Among those that the model read.
        cited: Among those that answers name; NaN if none is.
        used: Among those that answers can rest on; NaN if there is none.
    """

    attribute: str
    group: str
    retrieved: Estimate
    read: Estimate
    cited: Estimate
    used: Estimate


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """What the answers of an audit say.

    Attributes:
        generator: What answered.
        attributor: What judged which documents were used.
        questions: How many queries were asked as questions.
        answered: How many have an answer.
        failed: For how many the model failed.
        citing: How many answers name a document.
        unjudged: How many documents that were read have no verdict; they count as not used.
        documents: How many were read.
        groups: Of each attribute.
    """

    generator: str
    attributor: str
    questions: int
    answered: int
    failed: int
    citing: int
    unjudged: int
    documents: int
    groups: tuple[GroupStages, ...]


def measure_answers(
    records: Iterable[AnsweredQuery],
    queries: Mapping[str, AuditQuery],
    attributes: Mapping[str, Attribute],
    *,
    generator: str,
    attributor: str,
) -> AnswerFigures:
    """Measure the shares of groups at each stage.

    Args:
        records: One for each question.
        queries: By id; a query counts by its weight.
        attributes: By name.
        generator: What answered.
        attributor: What judged.
    """
    listed = list(records)
    answered = [it for it in listed if it.status == "ok"]
    weights = np.array([queries[it.query].weight for it in answered])
    return AnswerFigures(
        generator=generator,
        attributor=attributor,
        questions=len(listed),
        answered=len(answered),
        failed=sum(it.status == "failed" for it in listed),
        citing=sum(any(it.cited) for it in answered),
        unjudged=sum(verdict is None for it in answered for verdict in it.used),
        documents=sum(len(it.used) for it in answered),
        groups=tuple(
            stages
            for attribute in attributes.values()
            if answered
            for stages in _stages(attribute, answered, weights)
        ),
    )


def _stages(
    attribute: Attribute, answered: list[AnsweredQuery], weights: FloatArray
) -> Iterable[GroupStages]:
    counted = np.array([_counted(it, attribute.name) for it in answered])
    stages = [
        [within(it, 0, 1) for it in shares(counted[:, stage], weights)]
        for stage in range(len(STAGES))
    ]
    for group, *at in zip(attribute.universe, *stages, strict=False):
        yield GroupStages(attribute.name, group, *at)


def _counted(record: AnsweredQuery, attribute: str) -> FloatArray:
    """Return how many documents of each group there are at each stage, shape (4, G)."""
    shown = decoded(record.shown[attribute])
    read = shown[: len(record.used)]
    cited = np.array(record.cited, dtype=np.float64)
    used = np.array([bool(verdict) for verdict in record.used], dtype=np.float64)
    return np.stack([shown.sum(axis=0), read.sum(axis=0), cited @ read, used @ read])
