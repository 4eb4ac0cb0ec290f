"""The node that asks a person about the model's words, before they are searched with."""

from __future__ import annotations

from typing import Any

from langgraph.types import interrupt

from fairqr.base.errors import InputError
from fairqr.graph.running import Update
from fairqr.graph.search.context import Context
from fairqr.graph.search.edits import read_answer
from fairqr.graph.search.parts import SearchParts
from fairqr.graph.search.state import SearchState
from fairqr.retrieval.fairness.dimension import dimensions_of


async def review(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Ask a person about the model's words, and go on with the words of the answer.

    A wrong answer is asked about again, with a sentence that says what is wrong.
    """
    schema = parts.engine.schema
    dimensions = dimensions_of(schema, context.attributes, intersect=context.intersect)
    question: dict[str, Any] = {
        "query": state["query"],
        "topic": state["topic"],
        "words": state["words"],
    }
    while True:
        answer = interrupt(question)
        try:
            return {"iteration": state["iteration"], **read_answer(answer, dimensions)}
        except InputError as error:
            question = {**question, "error": str(error)}
