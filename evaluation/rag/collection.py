"""What questions are answered from: queries, each with a pool of documents of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fairqr.retrieval.sources.schema import Schema


@dataclass(frozen=True, slots=True)
class Utility:
    """How good an answer is; more is better, and 0 is the least.

    Attributes:
        name: Its name in tables, such as ``ROUGE-L``, ``accuracy`` or ``4 − |error|``.
        worth: Returns the utility of an answer that is not empty, from it and what counts as right.
        greatest: The greatest value.
    """

    name: str
    worth: Callable[[str, Sequence[str]], float]
    greatest: float = 1.0

    def __call__(self, answer: str, golds: Sequence[str]) -> float:
        """Return the utility of an answer, in [0, ``greatest``]; 0 for an empty one.

        Args:
            answer: As it was generated.
            golds: What counts as right; at least one.
        """
        return self.worth(answer, golds) if answer.strip() else 0.0


@dataclass(frozen=True, slots=True)
class PoolDocument:
    """A document that a query's answer may be written from.

    Attributes:
        id: Distinct within the pool.
        fields: For the placeholders of the prompt's ``item``.
        text: What retrievers match and attributors read.
        groups: For each attribute, the share of each group; empty where a collection has no groups,
            and for an attribute that is unknown.
    """

    id: str
    fields: Mapping[str, str]
    text: str
    groups: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class RagQuery:
    """A question with its pool.

    Attributes:
        id: Distinct within the collection.
        question: The text that the generator gets.
        query: What retrievers are asked.
        golds: What counts as a right answer; see :class:`Utility`.
        pool: In the order of the collection; at least one document.
        judged: The ids of its documents that are judged relevant; None if nobody judged.
    """

    id: str
    question: str
    query: str
    golds: tuple[str, ...]
    pool: tuple[PoolDocument, ...]
    judged: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class RagCollection:
    """Queries of one task.

    Attributes:
        name: As it stands in results.
        title: For people.
        prompt: The id of the prompt, such as ``lamp5``.
        utility: How good an answer is.
        label_utility: By which documents are useful, if it is not the same.
        queries: In the order of the files.
        fingerprint: A hash of what it was read from; labels of utility name it.
        note: Advice for a reader of its numbers; may be empty.
        schema: The groups; None if documents have none.
        left_out: How many queries of the files are not here, by reason.
    """

    name: str
    title: str
    prompt: str
    utility: Utility
    queries: tuple[RagQuery, ...]
    fingerprint: str
    note: str = ""
    schema: Schema | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    label_utility: Utility | None = None
