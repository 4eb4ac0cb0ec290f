"""The settings of runs that search, answer, probe or audit, and how they open their parts.

Help reads this module too, so it imports nothing heavy at its head.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from fairqr.base.errors import FairqrError
from fairqr.cli.common import Searched, open_to_search
from fairqr.cli.output import warn
from fairqr.retrieval.encoders.opening import AUTO

if TYPE_CHECKING:
    from fairqr.graph.search.context import Context
    from fairqr.graph.search.rankers import Model
    from fairqr.prompts.library import PromptLibrary
    from fairqr.retrieval.engines.engine import SearchEngine


class AuditRunSettings(BaseModel):
    """How an audit runs. These settings do not change the figures."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus_schema: Path | None = Field(
        None,
        description="The schema of a corpus that is a path; by default the file beside the corpus.",
    )
    rate: float | None = Field(
        None, gt=0, description="The most requests a second; no limit by default."
    )
    concurrency: int = Field(
        4, ge=1, le=256, description="How many queries to ask at the same time."
    )
    query_column: str | None = Field(
        None, description="The column with the queries; by default query, text or title."
    )
    id_column: str | None = Field(
        None, description="The column with the ids of queries; by default id, if it exists."
    )


class RunSettings(BaseModel):
    """How a run works; its context says what it does."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    corpus_schema: Path | None = Field(
        None,
        description="The schema of a corpus that is a path; by default the file beside the corpus.",
    )
    prompts_dir: Path | None = Field(
        None, description="A folder with your own prompts; FAIRQR_PROMPTS_DIR by default."
    )
    timeout: float = Field(
        60, gt=0, description="How many seconds one request to a model may take."
    )
    cache: bool = Field(
        True, description="Keep replies of models on disk, so that no question is asked twice."
    )

    def prompts_for(self, context: Context) -> PromptLibrary:
        """Return the prompts, after checking that they have the versions that the context names."""
        from fairqr.prompts.library import PromptLibrary

        library = PromptLibrary(self.prompts_dir)
        for id_, version in context.prompts.items():
            library.get(id_, version)
        return library

    async def opened_model(self, name: str, base_url: str | None, *, refines: bool) -> Model | str:
        """Return a model, checked if it refines; feedback, which needs an engine, stays a name."""
        from fairqr.agents.models.opening import open_language_model
        from fairqr.agents.refiner import FeedbackRefiner
        from fairqr.graph.search.rankers import require_refines

        if name == FeedbackRefiner.name:
            return name
        model = open_language_model(name, cache=self.cache, base_url=base_url, timeout=self.timeout)
        if refines:
            require_refines(model)
            # Report a missing part before a large corpus is indexed.
            await model.check()
        return model

    @contextlib.asynccontextmanager
    async def opened(self, where: Searched, context: Context) -> AsyncIterator[SearchEngine]:
        """Open what is searched, with the retriever of the method, and close it at the end."""
        retriever = context.strategy.searched_by(where.retriever or AUTO)
        engine = await open_to_search(where.name, schema=self.corpus_schema, retriever=retriever)
        async with contextlib.aclosing(engine):
            yield engine


class _ReadingSettings(RunSettings):
    """How a run that shows its documents works."""

    passages: bool = Field(True, description="Show how the text of each document begins.")

    async def passages_of(self, engine: SearchEngine, ids: Iterable[str]) -> Mapping[str, str]:
        """Return how the text of each document begins, by id; empty if that is not wanted."""
        from fairqr.graph.search.explanation import passage_of

        wanted = [*dict.fromkeys(ids)] if self.passages else []
        if not wanted:
            return {}
        try:
            documents = await engine.documents(wanted)
        except FairqrError as error:  # the run succeeded, and may have cost money
            warn(f"The texts of the documents could not be read: {error}")
            return {}
        return {document.id: passage_of(document.text) for document in documents}


class SearchRunSettings(_ReadingSettings):
    """How a search runs."""

    strict: bool = Field(False, description="Exit with code 2 if the model failed.")


class AnswerRunSettings(_ReadingSettings):
    """How a run that answers works."""

    input_tokens: int | None = Field(
        None,
        ge=64,
        description="The most tokens of a prompt; a longer prompt is cut. 2048 by default, and 512 "
        "for seq2seq models.",
    )
    concurrency: int = Field(
        8, ge=1, description="How many requests to models run at the same time."
    )
