"""Answers of a model from what an engine shows: which documents are read, cited and used.

A sample of the queries is asked as questions. The model reads the first documents that the engine
showed for the query, in their order, and gives the numbers of those that its answer comes from. An
attributor judges which of them the answer can rest on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from fairqr.agents.attribution.verdicts import Attributor, Pair, Verdict, hypothesis_of
from fairqr.agents.generators import GenerationRequest, Generator
from fairqr.base.errors import FairqrError, IndexUnavailableError, SourceError, one_line
from fairqr.base.statistics import stream
from fairqr.evaluation.audit.asking import Pace
from fairqr.evaluation.audit.observations import Observation
from fairqr.evaluation.audit.queries import AuditQuery
from fairqr.evaluation.experiments.engine import Absence, Done, Keep, run_tasks
from fairqr.evaluation.experiments.folder import Lines, Record
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.documents import Document
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.table import CodedMemberships

__all__ = [
    "PROMPT",
    "AnswerPlan",
    "AnsweredQuery",
    "cited_in",
    "run_answers",
    "sampled",
]

PROMPT = "cited_answer"
"""The id of the prompt."""

LOOKED_AT = 20
"""If the documents of so many queries have no text, the texts are not there."""

_CITATION = re.compile(r"\[(\s*\d+(?:\s*[,;]\s*\d+)*\s*)\]")


class AnsweredQuery(Record):
    """What became of the documents of one query.

    Attributes:
        query: The id of the query.
        status: ``ok``; ``empty`` if the engine showed nothing, or the model wrote nothing; or
            ``failed``.
        message: Why it failed.
        cited: For each document that the model read, whether the answer names its number.
        used: For each of them, whether the answer can rest on it; None if that was not judged.
        shown: By attribute, the memberships of the documents that the engine showed; those that
            were read come first.
    """

    keys = ("query",)

    query: str = Field(min_length=1)
    status: Literal["ok", "empty", "failed"]
    message: str = ""
    cited: tuple[bool, ...] = ()
    used: tuple[bool | None, ...] = ()
    shown: dict[str, CodedMemberships] = Field({})

    @property
    def is_final(self) -> bool:
        """Whether asking again would be no use."""
        return self.status != "failed"

    @model_validator(mode="after")
    def _fits_together(self) -> AnsweredQuery:
        if len(self.cited) != len(self.used) or bool(self.cited) != (self.status == "ok"):
            raise ValueError("there are not as many documents cited as used, or no answer")
        for name, coded in self.shown.items():
            rows, patterns = coded["rows"], coded["patterns"]
            if len(rows) < len(self.used) or not all(0 <= row < len(patterns) for row in rows):
                raise ValueError(f"the groups of '{name}' are not those of the documents")
        return self


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """What is asked, and who is asked.

    Attributes:
        engine: Gives the texts of the documents.
        generator: Answers.
        attributor: Judges what an answer used.
        prompt: Asks for answers with citations.
        shown: How many documents count as shown.
        read: How many of them the model reads.
        queries: The sample.
    """

    engine: SearchEngine
    generator: Generator
    attributor: Attributor
    prompt: PromptTemplate
    shown: int
    read: int
    queries: tuple[AuditQuery, ...]

    def cost(self, done: int = 0) -> str:
        """Say what is asked, at most.

        Args:
            done: How many queries have been answered.
        """
        left = len(self.queries) - done
        pairs = left * self.read
        return (
            f"at most {left:,} {'question' if left == 1 else 'questions'} for "
            f"'{self.generator.name}', each with {self.read:,} documents, and {pairs:,} "
            f"judgements by '{self.attributor.name}'"
        )

    async def answer(self, query: AuditQuery, observed: Observation) -> Done[AnsweredQuery]:
        """Ask for one answer, and judge it.

        Raises:
            IndexUnavailableError: The engine, which gives the texts, is away.
        """
        if observed.status != "ok":  # There is nothing to read.
            return Done(AnsweredQuery(query=query.id, status="empty"), (None,))
        try:
            documents = await self.documents(observed)
        except IndexUnavailableError:
            raise
        except FairqrError as error:
            message = one_line(error)
            failed = AnsweredQuery(query=query.id, status="failed", message=message)
            return Done(failed, (None,))
        size = min(self.shown, len(observed.ids))
        shown = {
            name: CodedMemberships(patterns=it["patterns"], rows=it["rows"][:size])
            for name, it in observed.groups.items()
        }
        request = GenerationRequest(
            self.prompt,
            query.text,
            [_fields(it, number) for number, it in enumerate(documents, start=1)],
        )
        reply = await self.generator.generate(request)
        if reply.status not in ("ok", "empty"):
            record = AnsweredQuery(query=query.id, status="failed", message=reply.message)
            return Done(record, (Absence(reply.status, reply.message),), usage=reply.usage)
        if not reply.text:
            record = AnsweredQuery(query=query.id, status="empty")
            return Done(record, (None,), usage=reply.usage)
        verdicts = await self._judged(reply.text, documents)
        record = AnsweredQuery(
            query=query.id,
            status="ok",
            cited=cited_in(reply.text, len(documents)),
            used=tuple(verdict.attributed for verdict in verdicts),
            shown=shown,
        )
        usage = sum((verdict.usage for verdict in verdicts), reply.usage)
        return Done(record, (None,), usage=usage)

    async def documents(self, observed: Observation) -> list[Document | None]:
        """Return the documents that the model reads; None for one that the engine lacks by now."""
        ids = observed.ids[: self.read]
        found = {it.id: it for it in await self.engine.documents(ids)}
        return [found.get(id_) for id_ in ids]

    async def _judged(self, answer: str, documents: Sequence[Document | None]) -> list[Verdict]:
        hypothesis = hypothesis_of(_CITATION.sub("", answer))
        texts = [_premise(document) for document in documents]
        judged = iter(await self.attributor.judge([Pair(it, hypothesis) for it in texts if it]))
        return [next(judged) if text else Verdict("empty_document") for text in texts]


def sampled(
    queries: Sequence[AuditQuery], count: int, seed: int, purpose: str = "answers"
) -> tuple[AuditQuery, ...]:
    """Choose so many of the queries; the same ones in whatever order they are given."""
    ordered = sorted(queries, key=lambda query: query.id)
    places = stream(seed, purpose).permutation(len(ordered))[:count]
    return tuple(ordered[place] for place in sorted(places.tolist()))


def cited_in(answer: str, documents: int) -> tuple[bool, ...]:
    """Return for each document whether an answer names it, as ``[1]`` or ``[1, 2]``.

    Args:
        answer: The text.
        documents: How many there are; they are numbered from 1 on.
    """
    numbers = {int(it) for held in _CITATION.findall(answer) for it in re.findall(r"\d+", held)}
    return tuple(number in numbers for number in range(1, documents + 1))


async def run_answers(
    plan: AnswerPlan,
    lines: Lines[AnsweredQuery],
    observations: Callable[[Iterable[str]], Mapping[str, Observation]],
    *,
    pace: Pace,
    concurrency: int,
    watcher: StageWatcher,
) -> None:
    """Ask for all answers that are not there yet.

    Args:
        plan: What to ask.
        lines: Where they go.
        observations: Returns what the engine answered to queries, by their ids.
        pace: Of the requests to the engine.
        concurrency: How many questions may be under way.
        watcher: Told how far it is.

    Raises:
        IndexUnavailableError: The engine is away; the answers until then are kept.
        ModelError: The model is away; the same.
        SourceError: The documents have no texts.
    """
    observed = observations(query.id for query in plan.queries)

    async def do(query: AuditQuery, keep: Keep[AnsweredQuery]) -> None:
        await pace.wait()
        keep(await plan.answer(query, observed[query.id]))

    await run_tasks(
        plan.queries,
        do,
        lines,
        title="answers",
        model=plan.generator.name,
        key=lambda query: query.id,
        start=lambda: _check_texts(plan, observed),
        cost=plan.cost,
        watcher=watcher,
        at_once=concurrency,
    )


async def _check_texts(plan: AnswerPlan, observed: Mapping[str, Observation]) -> None:
    """Look at the documents of a few queries before a model is asked.

    Raises:
        SourceError: None of them has a text.
    """
    answered = [it for it in observed.values() if it.status == "ok"][:LOOKED_AT]
    for observation in answered:
        if any(map(_premise, await plan.documents(observation))):
            return
    if answered:
        raise SourceError(
            f"'{plan.engine.name}' gives no texts, so a model has nothing to read; name the fields "
            "of its texts, or leave --answers out."
        )


def _fields(document: Document | None, number: int) -> dict[str, str]:
    title, text = (document.title, document.text) if document else ("", "")
    return {"number": str(number), "title": title, "text": text}


def _premise(document: Document | None) -> str:
    parts = (document.title, document.text) if document else ()
    return "\n".join(part.strip() for part in parts if part.strip())
