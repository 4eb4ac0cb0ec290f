"""One query of an experiment: its policies' rankings, the answers from them, and what they used."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairqr.agents.attribution.verdicts import Attributor, Pair, hypothesis_of
from fairqr.agents.replies import Usage
from fairqr.base.errors import InputError
from fairqr.evaluation.rag.answering import Answerer, Spent
from fairqr.evaluation.rag.collection import RagQuery
from fairqr.evaluation.rag.policies import Draw, Rankings, draw_rankings
from fairqr.evaluation.rag.records import AnswerRecord, PolicyRecord
from fairqr.evaluation.rag.specification import FairRagExperiment
from fairqr.retrieval.exposure import FloatArray

__all__ = ["QueryWork"]


@dataclass(slots=True)
class QueryWork:
    """Makes the records of one query; equal rankings of its policies are answered once.

    Attributes:
        experiment: What is asked.
        collection: The name of the collection.
        generator: The name of the generator, as the experiment has it.
        query: Which one.
        useful: The positions of its useful documents.
        answerer: What answers.
        attributor: What judges; None leaves attribution out.
        hypothesis: The template that makes answers into hypotheses.
    """

    experiment: FairRagExperiment
    collection: str
    generator: str
    query: RagQuery
    useful: tuple[int, ...]
    answerer: Answerer
    attributor: Attributor | None
    hypothesis: str
    _answers: dict[tuple[int, ...], AnswerRecord] = field(default_factory=dict, init=False)
    _verdicts: dict[tuple[int, str], bool] = field(default_factory=dict, init=False)

    def remember(self, records: Iterable[PolicyRecord]) -> None:
        """Take records of this query that were made before, so that nothing is asked again."""
        for record in records:
            for answer in record.answers:
                self._answers[answer.ranking] = answer

    async def record(self, draw: Draw, scores: Mapping[str, FloatArray]) -> PolicyRecord:
        """Draw the rankings of a policy, and answer from the first of them.

        Args:
            draw: Which policy.
            scores: By retriever, of the documents of the pool.

        Raises:
            ModelError: The generator fails all the time.
        """
        names = dict(
            zip(
                ("collection", "generator", "retriever", "policy", "alpha", "seed", "query"),
                draw.key(self.collection, self.generator, self.query.id),
                strict=True,
            )
        )
        parts = {
            **names,
            "pool": tuple(document.id for document in self.query.pool),
            "useful": self.useful,
            "k": self.experiment.k,
        }
        try:
            samples = self._rankings(draw, scores)
        except InputError as error:
            return PolicyRecord.model_validate({**parts, "failure": str(error)})
        spent = Spent()
        times = Counter(samples[: draw.answered(self.experiment)])
        answers = [
            (await self._answer(ranking, spent)).model_copy(update={"times": count})
            for ranking, count in times.items()
        ]
        return PolicyRecord.model_validate(
            {
                **parts,
                "samples": samples,
                "answers": tuple(answers),
                "model_calls": spent.model_calls,
                "tokens": spent.tokens,
                "milliseconds": round(spent.milliseconds, 1),
            }
        )

    def _rankings(self, draw: Draw, scores: Mapping[str, FloatArray]) -> Rankings:
        return draw_rankings(
            draw,
            scores[draw.retriever] if draw.retriever else None,
            self.useful,
            len(self.query.pool),
            self.experiment,
            (self.collection, self.query.id),
        )

    async def _answer(self, ranking: tuple[int, ...], spent: Spent) -> AnswerRecord:
        """Return the answer from a ranking; what it cost is added where it is asked for first."""
        if ranking not in self._answers:
            answered = await self.answerer.answer(self.query, ranking)
            spent.add(answered.spent)
            text = answered.generation.text
            self._answers[ranking] = AnswerRecord(
                ranking=ranking,
                times=1,
                status=answered.generation.status,
                text=text,
                utility=answered.utility,
                used=() if answered.utility is None else await self._used(ranking, text, spent),
            )
        return self._answers[ranking]

    async def _used(
        self, ranking: tuple[int, ...], answer: str, spent: Spent
    ) -> tuple[bool | None, ...]:
        """Tell which documents an answer used; each document and answer are judged once."""
        if self.attributor is None:
            return ()
        hypothesis = hypothesis_of(answer, self.hypothesis)
        asked = [place for place in ranking if (place, hypothesis) not in self._verdicts]
        begun = time.perf_counter()
        verdicts = await self.attributor.judge(
            [Pair(self.query.pool[place].text, hypothesis) for place in asked]
        )
        took = (time.perf_counter() - begun) * 1000
        usage = sum((verdict.usage for verdict in verdicts), Usage())
        spent.add(
            Spent(
                usage.model_calls + usage.cached_calls,
                usage.prompt_tokens + usage.completion_tokens + usage.cached_tokens,
                usage.cached_milliseconds + (took if usage.model_calls else 0.0),
            )
        )
        for place, verdict in zip(asked, verdicts, strict=True):
            if verdict.attributed is not None:
                self._verdicts[place, hypothesis] = verdict.attributed
        return tuple(self._verdicts.get((place, hypothesis)) for place in ranking)
