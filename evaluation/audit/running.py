"""An audit from its plan to its observations: what it asks, how long that takes, and where it goes.

A query with an observation is not asked again, so an audit that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fairqr.base.errors import (
    IndexUnavailableError,
    InputError,
    ModelError,
    SourceError,
    TargetError,
    one_line,
)
from fairqr.base.statistics import stream
from fairqr.base.weights.cache import is_pulled
from fairqr.evaluation.audit.answers import PROMPT, AnswerPlan, sampled
from fairqr.evaluation.audit.asking import Asker, Pace, RelevanceOfTexts
from fairqr.evaluation.audit.bundle import (
    AuditedEngine,
    AuditFolder,
    AuditManifest,
    Relevance,
    without_secrets,
)
from fairqr.evaluation.audit.measuring import dimensions_to_measure
from fairqr.evaluation.audit.observations import Observation
from fairqr.evaluation.audit.pair_running import PairPlan
from fairqr.evaluation.audit.pairs import Pairs, open_pair_scorer
from fairqr.evaluation.audit.probing import LIST, ProbePlan, sides_in
from fairqr.evaluation.audit.queries import AuditQuery, Queries
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.experiments.engine import Keep, run_tasks
from fairqr.evaluation.experiments.progress import StageWatcher, time_left
from fairqr.evaluation.qrels import Qrels
from fairqr.prompts.library import PromptLibrary
from fairqr.retrieval.documents import Progress
from fairqr.retrieval.encoders.encoder import text_of
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.encoders.opening import open_encoder
from fairqr.retrieval.engines.engine import Query, SearchEngine, require
from fairqr.retrieval.engines.run import RunEngine
from fairqr.retrieval.relevance_of_texts import TextRelevance
from fairqr.retrieval.schema import Attribute
from fairqr.retrieval.source import Source

if TYPE_CHECKING:
    from fairqr.evaluation.audit.answering import AskedModels

__all__ = ["AuditPlan", "make_plan", "open_texts", "run_audit"]

PROBED = 10
"""So many documents of so many queries tell whether an engine gives texts."""

UNLABELLED = 20
"""After so many answered queries without one label of an attribute, the labels are not there."""


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What is to be done.

    Attributes:
        manifest: What the folder keeps of it.
        queries: All of them.
        asker: Asks them.
        rate: The most requests a second.
        pairs: What to score beside; None without pairs.
        answers: What to ask a model; None if nothing.
        probe: What to probe; None if nothing.
    """

    manifest: AuditManifest
    queries: Queries
    asker: Asker
    rate: float | None = None
    pairs: PairPlan | None = None
    answers: AnswerPlan | None = None
    probe: ProbePlan | None = None

    def requests(self, done: int = 0) -> int:
        """Return how many requests the queries that are left take, at most.

        Args:
            done: How many queries have been asked.
        """
        asker = self.asker
        each = 1 + (asker.qrels is not None)
        if asker.texts is not None:
            each += 1 + bool(asker.widened)
        left = len(self.queries.queries) - done
        return left * each + min(left, len(asker.twice))

    def cost(self, done: int = 0) -> str:
        """Say what is asked, and how long that takes at least."""
        left, requests = len(self.queries.queries) - done, self.requests(done)
        queries = f"{left:,} {'query' if left == 1 else 'queries'}"
        said = f"{queries} for '{self.asker.engine.name}', up to {requests:,} requests"
        if self.rate:
            at_least = time_left(left / self.rate)
            said += f", at most {self.rate:g} a second, so at least {at_least}"
        return said


async def make_plan(
    spec: AuditSpec,
    engine: SearchEngine,
    queries: Queries,
    *,
    qrels: Qrels | None = None,
    texts: RelevanceOfTexts | None = None,
    without_texts: str = "",
    rate: float | None = None,
    pairs: Pairs | None = None,
    asked: AskedModels | None = None,
    command: Sequence[str] = (),
) -> AuditPlan:
    """Check what an audit needs, before anything is asked.

    Args:
        spec: What to measure.
        engine: The audited engine.
        queries: What to ask.
        qrels: Judgements by query id; above 0 is relevant.
        texts: Estimates relevance where there are no judgements.
        without_texts: Why there are no estimates, and what to do; a whole sentence.
        rate: The most requests a second.
        pairs: Documents in several versions, if there are any; ``spec.pairs_by`` scores them.
        asked: The models that ``spec.answers`` and ``spec.probe`` ask.
        command: How the audit was started, for the record.

    Raises:
        InputError: An attribute does not exist, or there are none; or the target needs relevance,
            and nothing says what is relevant.
        UnsupportedError: The target needs the groups of the whole corpus, which the engine cannot
            count.
    """
    if not engine.schema.attributes:
        raise InputError(
            f"'{engine.name}' has no attributes to audit; describe them in its schema, or in the "
            "source."
        )
    if rate is not None and not 0 < rate < math.inf:
        raise InputError(f"The rate is requests a second, above 0, not {rate:g}.")
    dimensions = dimensions_to_measure(engine.schema, spec)
    attributes = {factor.name: factor for dimension in dimensions for factor in dimension.factors}
    relevance: Relevance = "unknown"
    if qrels is not None:
        relevance, texts = "judged", None
        if not any(query.id in qrels for query in queries.queries):
            first = queries.queries[0].id
            raise InputError(
                f"The judgements have none of the queries, such as '{one_line(first, 80)}'; give "
                "the queries the ids that the judgements use, in a column 'id'."
            )
    elif texts is not None:
        relevance = "estimated"
    notes = []
    if relevance == "unknown":
        needs = without_texts or "Nothing says which documents are relevant; give judgements."
        if "target" in spec.model_fields_set and spec.target.parts.get("relevance"):
            raise TargetError(
                f"{needs} Or choose a target that does not need them, such as uniform:1."
            )
        if spec.target.parts.get("relevance"):
            notes.append(
                f"{needs} Until then no gaps are measured, unless a target such as uniform:1 says "
                "what each group should get."
            )
    shares: dict[str, tuple[float, ...]] = {}
    if spec.target.parts.get("corpus"):
        require(engine, "corpus_shares", "A target with the part 'corpus'")
        counted = await engine.corpus_shares()
        shares = {name: tuple(counted[name].tolist()) for name in attributes if name in counted}
    pair_plan = None
    inputs = {} if qrels is None else {"judgements": _fingerprint(qrels, queries)}
    if pairs is not None:
        pair_plan = PairPlan(pairs, open_pair_scorer(spec.pairs_by, pairs, engine))
        await pair_plan.scorer.start()
        inputs["pairs"] = pairs.fingerprint
    elif "pairs_by" in spec.model_fields_set:
        raise InputError("'pairs_by' says what scores pairs; name their file with --pairs, too.")
    if asked is not None and not (spec.answers or spec.probe):
        raise InputError(
            "A model answers or is probed; say how many answers with --answers, or what to probe "
            "with --probe."
        )
    answers = await _answer_plan(spec, engine, queries, asked)
    models = {} if pair_plan is None else {"pairs": pair_plan.scorer.name}
    if answers is not None:
        models |= {"generator": answers.generator.name, "attributor": answers.attributor.name}
    probe = await _probe_plan(spec, engine, queries, asked, attributes)
    if probe is not None:
        models["ranker"] = probe.model.name
    info = await engine.info()
    manifest = AuditManifest(
        spec=spec.model_dump(mode="json"),
        source=without_secrets(_described(engine)),
        inputs=inputs,
        queries=queries.fingerprint,
        seeds={"audit": spec.seed},
        command=without_secrets(tuple(command)),
        engine=AuditedEngine(
            name=engine.name,
            engine=info.engine,
            location=info.location,
            retriever=engine.retriever,
            # An index on a server may grow while it is audited.
            state=info.fingerprint if engine.in_process else "",
        ),
        documents=info.documents,
        attributes={name: engine.schema.attribute(name) for name in attributes},
        relevance=relevance,
        encoder=MiniLmEncoder.name if relevance == "estimated" else "",
        models=models,
        corpus_shares=shares,
        notes=tuple(notes),
    )
    asker = Asker(
        engine,
        tuple(attributes.values()),
        spec.depth,
        qrels=qrels,
        texts=texts,
        widened=_widened(spec, engine, attributes) if relevance == "estimated" else (),
        # A file says the same again.
        twice=frozenset() if isinstance(engine, RunEngine) else _twice(spec, queries),
        words=_words(engine),
        pace=Pace(rate),
    )
    return AuditPlan(manifest, queries, asker, rate, pair_plan, answers, probe)


async def _answer_plan(
    spec: AuditSpec,
    engine: SearchEngine,
    queries: Queries,
    asked: AskedModels | None,
) -> AnswerPlan | None:
    """Return what to ask a model, which is started; None if nothing.

    Raises:
        InputError: Answers are wanted, and no model or no texts are there.
        ModelUnavailableError: The model or the attributor cannot be started.
    """
    if not spec.answers:
        return None
    if asked is None:
        raise InputError("Answers need a model; name one with --model, such as openai:gpt-4o.")
    if spec.read > spec.k:
        raise InputError(
            f"The model is to read {spec.read} documents, and only {spec.k} count as shown; lower "
            "'read', or raise k."
        )
    generator, attributor = asked.generator, asked.attributor
    await generator.start()
    await attributor.start()
    prompt = PromptLibrary().get(PROMPT)
    chosen = sampled(queries.queries, spec.answers, spec.seed)
    return AnswerPlan(engine, generator, attributor, prompt, spec.k, spec.read, chosen)


async def _probe_plan(
    spec: AuditSpec,
    engine: SearchEngine,
    queries: Queries,
    asked: AskedModels | None,
    attributes: Mapping[str, Attribute],
) -> ProbePlan | None:
    """Return what to probe; None if nothing.

    Raises:
        InputError: A probe is wanted, and its sides or the model do not exist.
        ModelUnavailableError: The model cannot be started.
    """
    if not spec.probe:
        return None
    sides, protected = sides_in(spec.probe, attributes)
    if asked is None or asked.chat is None:
        raise InputError(
            "A probe needs a chat model; name one with --model, such as openai:gpt-4o."
        )
    await asked.chat.start()
    chosen = sampled(queries.queries, spec.probed, spec.seed, "probe")
    documents = min(spec.k, LIST)
    return ProbePlan(engine, asked.chat, sides, protected, documents, chosen, _words(engine))


async def open_texts(
    engine: SearchEngine, queries: Queries, progress: Progress | None = None
) -> tuple[TextRelevance | None, str]:
    """Open what estimates relevance from the texts of an engine's documents.

    Args:
        engine: Gives the texts.
        queries: Those of the audit.
        progress: Told how many texts have been encoded, if any have to be.

    Returns:
        The estimator and nothing; or None, and a sentence that says why there is none and what to
        do.

    Raises:
        ModelError: The encoder fails.
    """
    if not is_pulled(MiniLmEncoder.name):
        return None, (
            "Relevance cannot be estimated without MiniLM; run 'fairqr models pull minilm', or "
            "give judgements."
        )
    searches = [query.text for query in queries.queries]
    if isinstance(engine, RunEngine):
        # Words that the run does not know would find nothing.
        searches = [query.id for query in queries.queries if query.id in engine.rankings]
        if all(query.id == query.text for query in queries.queries):
            return None, (
                f"Relevance cannot be estimated without the texts of the queries of "
                f"'{engine.name}'; give the file of its queries, or judgements."
            )
    texts = await TextRelevance.open(engine, open_encoder(MiniLmEncoder.name), progress, searches)
    if not texts.reference.texts and not await _gives_texts(engine, searches):
        return None, (
            f"Relevance cannot be estimated, since '{engine.name}' gives no texts; give "
            "judgements, or name the fields of its texts."
        )
    return texts, ""


async def _gives_texts(engine: SearchEngine, searches: Sequence[str]) -> bool:
    """Return whether any document has a text that the first queries find."""
    found = await engine.search([Query(text, PROBED) for text in searches[:PROBED]])
    ids = list(dict.fromkeys(id_ for hits in found for id_ in hits.ids))
    return any(text_of(document).strip() for document in await engine.documents(ids))


def _described(engine: SearchEngine) -> dict[str, Any]:
    """Return how an attached engine is described; nothing for others."""
    source = getattr(engine, "source", None)
    return source.model_dump(mode="json") if isinstance(source, Source) else {}


def _fingerprint(qrels: Qrels, queries: Queries) -> str:
    held = [sorted(qrels.get(query.id, {}).items()) for query in queries.queries]
    return hashlib.sha256(json.dumps(held).encode()).hexdigest()


def _widened(
    spec: AuditSpec, engine: SearchEngine, attributes: Mapping[str, Attribute]
) -> tuple[tuple[str, str], ...]:
    if not spec.widen:
        return ()
    groups = [(name, group) for name, it in attributes.items() for group in it.groups]
    return tuple(group for group in groups if group in engine.filterable)


def _twice(spec: AuditSpec, queries: Queries) -> frozenset[str]:
    """Choose the queries of the second pass."""
    ids = sorted(query.id for query in queries.queries)
    chosen = stream(spec.seed, "again").permutation(len(ids))[: spec.again]
    return frozenset(ids[place] for place in chosen)


def _words(engine: SearchEngine) -> Callable[[AuditQuery], str]:
    """Return what an engine is asked for a query: a run is asked by the ids that it has."""
    if isinstance(engine, RunEngine):
        rankings = engine.rankings
        return lambda query: query.id if query.id in rankings else query.text
    return lambda query: query.text


class _Labels:
    """Notices an attribute for which no document has a label.

    Args:
        engine: Its name, for the message.
        attributes: That are audited.
    """

    def __init__(self, engine: str, attributes: tuple[Attribute, ...]) -> None:
        self._engine = engine
        self._missing = {attribute.name for attribute in attributes}
        self._answered = 0

    def take(self, observation: Observation) -> None:
        """Look at an observation.

        Raises:
            SourceError: The documents of many queries have no label of an attribute.
        """
        if not self._missing or observation.status != "ok":
            return
        self._answered += 1
        for name in list(self._missing):
            if any(map(any, observation.groups[name]["patterns"])):
                self._missing.discard(name)
        if self._answered >= UNLABELLED:
            self.check()

    def check(self) -> None:
        """Refuse to go on without labels.

        Raises:
            SourceError: No document had a label of an attribute.
        """
        if self._missing and self._answered:
            name = min(self._missing)
            raise SourceError(
                f"None of the documents that '{self._engine}' answered to {self._answered:,} "
                f"queries has a label of '{name}'; check its field or its file of labels, or "
                "leave the attribute out."
            )


async def run_audit(
    plan: AuditPlan, folder: AuditFolder, *, concurrency: int, watcher: StageWatcher
) -> None:
    """Ask all queries that have no observation yet.

    Args:
        plan: What to ask.
        folder: Where observations go; locked while this runs.
        concurrency: How many queries may be under way.
        watcher: Told how far it is.

    Raises:
        InputError: The folder holds another audit, or another process runs one there.
        IndexUnavailableError: The engine is away; what was observed until then is kept.
        SourceError: No document has a label of an attribute.
        ModelError: An encoder fails.
    """
    queries = plan.queries.queries
    labels = _Labels(plan.asker.engine.name, plan.asker.attributes)

    async def start() -> None:
        # Nothing is written before everything is there.
        folder.begin(plan.manifest)

    async def do(query: AuditQuery, keep: Keep[Observation]) -> None:
        found = await plan.asker.observe(query)
        labels.take(found.record)
        keep(found)

    folder.check(plan.manifest)
    for sentence in plan.manifest.notes:
        watcher.note(sentence)
    try:
        await run_tasks(
            queries,
            do,
            folder.lines,
            title="queries",
            model=f"The engine '{plan.asker.engine.name}'",
            key=lambda query: query.id,
            start=start,
            cost=plan.cost,
            watcher=watcher,
            at_once=concurrency,
        )
    except ModelError as error:
        if error.status != "unavailable":
            raise
        raise IndexUnavailableError(str(error)) from None
    labels.check()
