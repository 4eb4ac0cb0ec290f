"""A Fair RAG experiment from its plan to its records: for each query labels, then all policies."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairqr.agents.attribution.attributor import Attributor, Pair, hypothesis_of
from fairqr.agents.attribution.checking import unchecked_warning
from fairqr.agents.attribution.opening import open_attributor
from fairqr.agents.generators import GenerationRequest, Generator
from fairqr.agents.models.opening import open_generator
from fairqr.agents.models.replies import Usage
from fairqr.base.errors import InputError, ModelError, one_line
from fairqr.base.files import sha256_of
from fairqr.evaluation.experiments.engine import Done, check_answered, refusal_of, run_tasks
from fairqr.evaluation.experiments.folder import spent
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.experiments.workers import RunOptions, Tools, make_ready
from fairqr.evaluation.lamp.loading import Kept
from fairqr.evaluation.rag.collection import RagCollection, RagQuery, Utility
from fairqr.evaluation.rag.finding import find_rag_collection
from fairqr.evaluation.rag.measures import MeasuredRag, measure_fair_rag, memberships_of, shares_of
from fairqr.evaluation.rag.specification import LABELS, Draw, FairRagExperiment
from fairqr.evaluation.rag.store import AnswerRecord, PolicyRecord, RagManifest, RagStore
from fairqr.prompts.library import PromptLibrary
from fairqr.prompts.template import PromptTemplate
from fairqr.retrieval.fairness.exposure import FloatArray
from fairqr.retrieval.pools.retrievers import PoolRetriever, open_pool_retriever
from fairqr.retrieval.sampling import plackett_luce
from fairqr.retrieval.sampling.group_aware import shifted
from fairqr.retrieval.sources.schema import Attribute

Ranking = tuple[int, ...]
"""Positions in a pool, the best first."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A generator on a collection, as a job needs it.

    Attributes:
        collection: The name of the collection.
        generator: As :func:`fairqr.agents.models.opening.open_generator` takes it; empty for none.
        attributor: Its name; empty for no attribution.
        groups: The attribute whose groups the policy ``group-aware`` minds.
        asks: Whether the generator is asked for anything: for labels, or from rankings.
    """

    experiment: FairRagExperiment
    collection: str
    generator: str
    utility: Utility
    label_utility: Utility
    prompt: PromptTemplate
    attributor: str
    groups: Attribute | None = None
    asks: bool = True

    def key(self, draw: Draw, query: RagQuery) -> tuple[Any, ...]:
        """Return the key of the record of a query."""
        return (self.collection, self.generator, *draw, query.id)


Task = tuple[Part, RagQuery]


class RagPlan(NamedTuple):
    """The work of a run.

    Attributes:
        manifest: What it is done with.
        tasks: One part after the other, since large models do not fit side by side.
        labels: Those that somebody else made.
    """

    manifest: RagManifest
    tasks: list[Task]
    labels: Sequence[PolicyRecord] = ()

    def there(self, store: RagStore) -> dict[Hashable, PolicyRecord]:
        """Return the records that need not be made."""
        return {record.key: record for record in (*self.labels, *store.lines.read())}


# --- what a job does ------------------------------------------------------------------------------


def draw_rankings(
    part: Part, query: RagQuery, draw: Draw, scores: FloatArray, useful: Sequence[int]
) -> tuple[Ranking, ...]:
    """Draw the rankings of a policy; neither order nor concurrency changes what is drawn.

    Args:
        part: How many rankings, and how long.
        query: Its stream of random numbers is its own.
        draw: The policy.
        scores: The retriever's, shape (n,); the oracle needs their number alone.
        useful: The positions of the useful documents, for the oracle.

    Raises:
        InputError: The scores are no finite numbers.
    """
    samples, k, form = part.experiment.samples, part.experiment.k, part.experiment.form
    names = (part.collection, query.id)
    if draw.policy == "oracle":
        stream = plackett_luce.stream_of(draw.seed, *names, draw.policy)
        is_useful = np.isin(np.arange(len(scores)), useful)
        drawn = plackett_luce.sample_oracle(is_useful, samples, k, stream)
    elif draw.alpha is None:
        drawn = plackett_luce.deterministic(scores, k)[np.newaxis]
    else:
        stream = plackett_luce.stream_of(draw.seed, *names, draw.retriever, f"{draw.alpha:g}")
        weights = plackett_luce.log_weights_of(scores, draw.alpha, form)
        if draw.policy == "group-aware" and part.groups is not None:
            members = memberships_of(part.groups, [it.groups for it in query.pool])[:, :-1]
            target = shares_of(part.groups, members)
            weights = shifted(weights, members, target, min(k, len(scores)), stream)
        drawn = plackett_luce.race(weights, samples, min(k, len(scores)), stream)
    return tuple(map(tuple, drawn.tolist()))


def singles(query: RagQuery) -> list[Ranking]:
    """Return what labels are made from: no document, and then each alone."""
    return [(), *((place,) for place in range(len(query.pool)))]


def record_of(part: Part, draw: Draw, query: RagQuery, **values: Any) -> PolicyRecord:
    """Return the record of a policy on a query; the one of labels names the useful documents."""
    facts = dict(zip(PolicyRecord.keys, part.key(draw, query), strict=True))
    facts |= {"pool": tuple(it.id for it in query.pool), "k": part.experiment.k}
    if draw == LABELS:
        without, *alone = (answer.utility for answer in values["answers"])
        better = [it is not None and it > without for it in alone]
        facts |= {"useful": np.flatnonzero(better).tolist(), "k": 1}
    return PolicyRecord.model_validate(facts | values)


async def open_part(
    tools: Tools, part: Part
) -> tuple[Generator | None, Attributor | None, dict[str, PoolRetriever]]:
    """Return the generator if it is asked, the attributor and the retrievers, which are started.

    Raises:
        ModelUnavailableError: One of them is not there.
    """
    kept, name = tools.replies, part.attributor
    retrievers = {
        it: await tools.started(f"retriever {it}", it, partial(open_pool_retriever, it))
        for it in part.experiment.retrievers
    }
    judge = partial(open_attributor, name, cache=kept, prompts=tools.prompts)
    attributor = await tools.started("attributor", name, judge) if name else None
    if not part.asks:
        return None, attributor, retrievers
    # One place for all, since large models do not fit side by side.
    room = part.experiment.input_tokens
    opened = partial(open_generator, part.generator, cache=kept, input_tokens=room)
    generator = await tools.started("generator", part.generator, opened)
    return generator, attributor, retrievers


async def answer_query(
    tools: Tools, part: Part, query: RagQuery, before: Sequence[PolicyRecord]
) -> Done[PolicyRecord]:
    """Label the documents of a query, and answer from the rankings of every policy.

    Args:
        tools: What is open.
        part: The generator and what it is asked.
        query: The question and its pool.
        before: The records that are there.
    """
    generator, attributor, retrievers = await open_part(tools, part)
    known = {it.ranking: it for own in before if own.policy != "labels" for it in own.answers}
    answerer = Answerer(part, query, generator, attributor, known)
    made, done = list[PolicyRecord](), {record.key: record for record in before}
    try:
        if (label := done.get(part.key(LABELS, query))) is None:
            label = await answerer.label()
            made.append(label)
        is_dropped = label.why_dropped(part.experiment.min_useful)
        left = [draw for draw in part.experiment.draws if part.key(draw, query) not in done]
        scores = {"": np.zeros(len(query.pool))}  # the oracle has no retriever
        for draw in left if not is_dropped else ():
            if (name := draw.retriever) not in scores:
                texts = [document.text for document in query.pool]
                scores[name] = await retrievers[name].scores(query.query, texts)
            made.append(await answerer.follow(draw, scores[name], label.useful))
    except ModelError as error:
        return Done(made, away=error)
    return Done(made, refusal=refusal_of(answerer.checked))


@dataclass(slots=True)
class Answerer:
    """Answers a query from rankings of its pool, and asks for each once.

    Attributes:
        generator: It has been started, and so has the attributor; None if nothing is to be asked.
        known: The answers that there are.
        checked: For each question why it was refused, if it was.
    """

    part: Part
    query: RagQuery
    generator: Generator | None
    attributor: Attributor | None
    known: dict[Ranking, AnswerRecord] = field(default_factory=dict)
    checked: list[ModelError | None] = field(default_factory=list, init=False)
    _usage: Usage = field(default_factory=Usage, init=False)
    _begun: float = field(default_factory=time.perf_counter, init=False)

    async def label(self) -> PolicyRecord:
        """Ask with no document, and then with each alone.

        Raises:
            ModelError: The generator was away.
        """
        answers: list[AnswerRecord] = []
        for ranking in singles(self.query):
            answers.append(await self._ask(ranking, self.part.label_utility))
            if answers[0].utility is None:
                break  # no gain can be known, and the query will be dropped
        return self._record(LABELS, answers=answers)

    async def follow(self, draw: Draw, scores: FloatArray, useful: Ranking) -> PolicyRecord:
        """Draw the rankings of a policy, and answer from the first of them.

        Args:
            draw: The policy.
            scores: See :func:`draw_rankings`.
            useful: The positions of the useful documents.

        Raises:
            ModelError: The generator or the attributor was away.
        """
        try:
            # Groups may take seconds to weigh, in which other questions go on.
            drawing = (self.part, self.query, draw, scores, useful)
            samples = await asyncio.to_thread(draw_rankings, *drawing)
        except InputError as error:
            return self._record(draw, useful=useful, failure=str(error))
        answers = []
        for ranking, times in Counter(samples[: self.part.experiment.answered]).items():
            if ranking not in self.known:
                answer = await self._ask(ranking, self.part.utility)
                used = () if answer.utility is None else await self._used(ranking, answer.text)
                self.known[ranking] = answer.model_copy(update={"used": used})
            answers.append(self.known[ranking].model_copy(update={"times": times}))
        return self._record(draw, useful=useful, samples=samples, answers=answers)

    def _record(self, draw: Draw, **values: Any) -> PolicyRecord:
        """Return a record with what was spent since the last one."""
        now, usage = time.perf_counter(), self._usage
        # Cached replies count as when they were made, and took no time now.
        took = (now - self._begun) * 1000 if usage.model_calls else 0.0
        values |= spent(usage) | {"milliseconds": round(took + usage.cached_milliseconds, 1)}
        self._usage, self._begun = Usage(), now
        return record_of(self.part, draw, self.query, **values)

    async def _ask(self, ranking: Ranking, utility_of: Utility) -> AnswerRecord:
        sources = [self.query.pool[place].fields for place in ranking]
        request = GenerationRequest(self.part.prompt, self.query.question, sources)
        if self.generator is None:
            raise RuntimeError(f"Nobody is there to answer '{self.query.id}'.")
        reply = await self.generator.generate(request)
        self._usage += reply.usage
        self.checked.append(check_answered(reply.status, reply.message))
        utility = utility_of(reply.text, self.query.golds)
        worth = utility if reply.status in ("ok", "empty") else None
        return AnswerRecord(ranking=ranking, status=reply.status, text=reply.text, utility=worth)

    async def _used(self, ranking: Ranking, answer: str) -> tuple[bool | None, ...]:
        """Return for each document of a ranking whether an answer used it."""
        if self.attributor is None:
            return ()
        said = hypothesis_of(answer)
        pairs = [Pair(self.query.pool[place].text, said) for place in ranking]
        verdicts = await self.attributor.judge(pairs)
        for verdict in verdicts:
            self._usage += verdict.usage
            check_answered(verdict.status, verdict.message)
        return tuple(verdict.attributed for verdict in verdicts)


# --- what is to do --------------------------------------------------------------------------------


def open_collections(experiment: FairRagExperiment) -> dict[str, RagCollection]:
    """Read the collections of an experiment, by name.

    Raises:
        InputError: None is named, or two have one name.
        CorpusError: One cannot be read.
    """
    if not experiment.collections:
        raise InputError("The experiment names no collection; name one with --collection.")
    kept = Kept(not experiment.drop_duplicates, not experiment.drop_answers)
    how: Any = {"task": experiment.task, "limit": experiment.queries, "pool": experiment.pool}
    how |= {"kept": kept, "rating_labels": experiment.rating_labels}
    found = [find_rag_collection(name, **how) for name in experiment.collections]
    by_name = {collection.name: collection for collection in found}
    if len(by_name) < len(found):
        raise InputError("Two of the collections have the same name; rename one of them.")
    return by_name


def make_rag_plan(
    experiment: FairRagExperiment,
    collections: Mapping[str, RagCollection],
    prompts: PromptLibrary,
    attributor: str = "",
    notes: Iterable[str] = (),
    labels: Sequence[Path] = (),
) -> RagPlan:
    """Hold an experiment against its collections.

    Args:
        experiment: What is asked.
        collections: Those that it names, in its order.
        prompts: Where prompts come from.
        attributor: As it names itself; empty where nothing judges.
        notes: Sentences for the report.
        labels: Tables for :func:`read_labels`.

    Raises:
        InputError: Documents of a collection do not have the groups to mind, or labels are of
            something else.
        PromptError: A prompt does not exist, or there is no such version of it.
    """
    # Also those that these collections do not ask with: a name may be misspelt.
    chosen = {name: prompts.get(name, version) for name, version in experiment.prompts.items()}
    asked, tasks, mind = {}, list[Task](), experiment.group_aware
    for name, collection in collections.items():
        kind = collection.prompt
        asked[name] = chosen.get(kind) or prompts.get(kind)
        if mind and mind not in (collection.schema.attributes if collection.schema else ()):
            raise InputError(f"The documents of '{name}' have no attribute '{one_line(mind)}'.")
    asks = bool(experiment.generators) and (experiment.answered > 0 or not labels)
    for generator in experiment.labellers:
        for name, collection in collections.items():
            groups = collection.schema.attributes[mind] if mind and collection.schema else None
            label_utility = collection.label_utility or collection.utility
            how = (collection.utility, label_utility, asked[name], attributor, groups, asks)
            part = Part(experiment, name, generator, *how)
            tasks += [(part, query) for query in collection.queries]
    if labels or experiment.generators:
        records = [it for path in labels for it in read_labels(path, tasks)]
    else:
        records = judged_labels(tasks)
    if labels and experiment.generators and not asks and len(records) < len(tasks):
        raise InputError("The labels are not those of all generators and collections; add them.")
    manifest = RagManifest(
        experiment=experiment,
        collections={name: it.fingerprint for name, it in collections.items()},
        prompts={f"{it.id}={it.version}": it.sha256 for it in asked.values()},
        attributor=attributor,
        labels=tuple(map(sha256_of, labels)),
        notes=tuple(notes),
    )
    return RagPlan(manifest, tasks, records)


def judged_labels(tasks: Sequence[Task]) -> list[PolicyRecord]:
    """Return labels from the judgements of a collection: what is relevant is useful to anybody.

    Raises:
        InputError: Nobody judged the documents of a collection.
    """
    labels = []
    for part, query in tasks:
        if query.judged is None:
            raise InputError(
                f"Nobody judged the documents of '{part.collection}', and the experiment has no "
                "generator; name labels with --labels, or a generator that makes them."
            )
        labels.append(given_label(part, query, dict.fromkeys(query.judged, 1.0), 0.0))
    return labels


def given_label(
    part: Part, query: RagQuery, known: Mapping[str, float], other: float | None
) -> PolicyRecord:
    """Return the labels of a query as somebody else gave them.

    Args:
        part: Whom documents are useful to.
        query: The question with its pool.
        known: The labels by the ids of documents, 1 or 0.
        other: The label of other documents; None if they have none.
    """
    worth = [0.0, *(known.get(document.id, other) for document in query.pool)]
    answers = [
        AnswerRecord(ranking=ranking, status="given", utility=utility)
        for ranking, utility in zip(singles(query), worth, strict=True)
    ]
    return record_of(part, LABELS, query, answers=answers)


def read_labels(path: Path, tasks: Sequence[Task]) -> list[PolicyRecord]:
    """Read which documents are useful, as somebody else found it.

    Args:
        path: A table as the authors of "Towards Fair RAG" released it: tab-separated, with the
            columns ``qid``, ``pid`` and ``relevance_label``, 1 or 0. They left out queries with
            fewer than two useful documents, so a query that is not in it has none. The optional
            columns ``generator`` and ``collection`` say whose and of what they are; without them,
            the table is of all generators, or all collections, that there are.
        tasks: What needs labels; of several generators or collections only if the table names them.

    Raises:
        InputError: There is nothing of these, or the table does not say of which they are.
    """
    import pandas as pd

    kinds = {"qid": str, "pid": str, "relevance_label": float}
    names = {"generator": str, "collection": str}
    try:
        table = pd.read_csv(path, sep="\t", dtype=kinds | names).astype({"qid": str})
        table = table[[*kinds, *(name for name in names if name in table)]]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} holds no labels: {one_line(error)}.") from None
    for name in names:
        known = {getattr(part, name) for part, _ in tasks}
        if name in table:
            tasks = [task for task in tasks if getattr(task[0], name) in set(table[name])]
        elif len(known) > 1:
            raise InputError(f"{path} is of one {name}; name one, or add a column '{name}'.")
        else:
            table[name] = next(iter(known))
    by_query = table.groupby(["generator", "collection", "qid"])
    labelled = {key: dict(zip(own.pid, own.relevance_label, strict=True)) for key, own in by_query}
    keys = [(part.generator, part.collection, query.id) for part, query in tasks]
    if not labelled.keys() & set(keys):
        raise InputError(f"The labels in {path} are of another collection.")
    return [
        given_label(part, query, labelled.get(key, {}), None if key in labelled else 0.0)
        for (part, query), key in zip(tasks, keys, strict=True)
    ]


def keys_of(task: Task, there: Mapping[Hashable, PolicyRecord]) -> list[Hashable]:
    """Return the keys of a query's label and, if that keeps it, of all policies."""
    part, query = task
    label = there.get(part.key(LABELS, query))
    is_kept = label is not None and not label.why_dropped(part.experiment.min_useful)
    draws = [LABELS, *part.experiment.draws] if is_kept else [LABELS]
    return [part.key(draw, query) for draw in draws]


def cost_of(plan: RagPlan, store: RagStore) -> Counter[str]:
    """Return what is still to be done, at most: queries may be dropped, and rankings be equal.

    Returns:
        How many answers for ``labels`` and from ``rankings``, and how many ``attributions``.
    """
    experiment, there, cost = plan.manifest.experiment, plan.there(store), Counter[str]()
    for part, query in plan.tasks:
        left = [it for it in (LABELS, *experiment.draws) if part.key(it, query) not in there]
        if LABELS not in left and len(keys_of((part, query), there)) == 1:
            continue  # it is left out
        labels, answers = answers_of(query, experiment, left)
        cost += Counter(labels=labels, rankings=answers)
        cost["attributions"] += answers * min(experiment.k, len(query.pool)) * bool(part.attributor)
    return cost


def answers_of(
    query: RagQuery, experiment: FairRagExperiment, left: Sequence[Draw]
) -> tuple[int, int]:
    """Return how many answers a query takes, at most: for its labels, and from rankings.

    Args:
        query: It has a pool.
        experiment: How many rankings are answered, and how long they are.
        left: Labels and policies that have no record yet.
    """
    answered = experiment.answered
    drawn = [
        min(1, answered) if it.policy == "deterministic" else answered
        for it in left
        if it != LABELS
    ]
    most = math.perm(len(query.pool), min(experiment.k, len(query.pool)))
    is_labelled = LABELS in left and bool(experiment.generators)
    return len(singles(query)) * is_labelled, min(sum(drawn), most)


async def run_fair_rag(plan: RagPlan, store: RagStore, tools: Tools, watcher: StageWatcher) -> None:
    """Do all that is not done yet.

    Args:
        plan: What to do.
        store: Where results go; locked while this runs.
        tools: Do the jobs.
        watcher: Receives the progress.

    Raises:
        FairqrError: It cannot go on for a reason that concerns more than one answer; the results so
            far are kept.
    """

    async def start(part: Part) -> None:
        await tools.do(make_ready, open_part, part)
        store.begin(plan.manifest)

    async def do(task: Task) -> Done[PolicyRecord]:
        before = [there[key] for key in keys_of(task, there) if key in there]
        done = await tools.do(answer_query, *task, before)
        given = [record for record in before if record.key not in kept]
        return replace(done, records=[*given, *done.records])

    experiment = plan.manifest.experiment
    every = (LABELS, *experiment.draws)
    with store.locked():
        store.check(plan.manifest)
        there, kept = plan.there(store), store.lines.done()
        await run_tasks(
            plan.tasks,
            do,
            store.lines,
            title="queries",
            keys=lambda task: keys_of(task, there),
            place=lambda task: task[0],
            start=start,
            model=lambda part: part.generator,
            questions=lambda task: sum(answers_of(task[1], experiment, every)) or 1,
            watcher=watcher,
            at_once=tools.at_once,
        )


async def run(experiment: FairRagExperiment, options: RunOptions) -> None:
    """Do all that is not done yet, and say first what it will cost at most."""
    collections = open_collections(experiment)
    # A wrong name is an error here.
    for name in experiment.retrievers:
        open_pool_retriever(name)
    for name in experiment.generators:
        open_generator(name, cache=False)
    attributor, notes = "", list[str]()
    if experiment.answered and experiment.attributor != "none":
        judge = open_attributor(experiment.attributor, cache=False, prompts=options.prompts)
        attributor, notes = judge.name, [*filter(None, [unchecked_warning(judge)])]
    notes += [f"Which documents are useful is imported from {it.name}." for it in options.labels]
    if not (experiment.generators or options.labels):
        notes.append("Useful documents are those that the collection's judgements call relevant.")
    plan = make_rag_plan(
        experiment, collections, options.prompts, attributor, notes, options.labels
    )
    store = RagStore(options.folder)
    store.check(plan.manifest)
    cost = cost_of(plan, store)
    answers = cost["labels"] + cost["rankings"]
    told = (
        f"at most {answers:,} answers ({cost['labels']:,} of them for labels), "
        f"{cost['attributions']:,} attributions"
    )
    for sentence in (*plan.manifest.notes, told if answers else "nothing is left to ask"):
        options.watcher.note(sentence)
    async with options.tools(store.replies) as tools:
        await run_fair_rag(plan, store, tools, options.watcher)


def measure(folder: Path) -> MeasuredRag:
    """Measure all answers of a folder.

    Raises:
        InputError: A collection has changed since the run.
    """
    store = RagStore(folder)
    manifest = store.manifest()
    collections = open_collections(manifest.experiment)
    if {name: it.fingerprint for name, it in collections.items()} != manifest.collections:
        raise InputError(f"The collections of {folder} have changed since the experiment was run.")
    return measure_fair_rag(manifest, store.lines.read(), collections)
