"""The nodes of a search, in the order in which they run.

Each is a function of the state, the context of the run and the parts of the graph, and returns what
it changes in the state.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, cast

import numpy as np
from langgraph.errors import GraphBubbleUp
from langgraph.types import Overwrite

from fairqr.agents.models.replies import Usage, no_answer_within
from fairqr.agents.refiners.cleaning import take_in_turn
from fairqr.agents.refiners.refiner import (
    GroupRequest,
    Refinement,
    Refiner,
    RoundRefiner,
    TopicRefiner,
    TopicRequest,
)
from fairqr.base.errors import ModelUnavailableError, QueryError, one_line
from fairqr.base.loops import run_together
from fairqr.base.telemetry import current_span, span
from fairqr.graph.running import (
    Update,
    record,
    record_outcome,
    seconds_left,
    usage_of,
)
from fairqr.graph.search import rankers, words
from fairqr.graph.search.budget import Spending, tokens_a_question
from fairqr.graph.search.context import Context
from fairqr.graph.search.edits import checked_words, groups_to_refine, words_in_use
from fairqr.graph.search.explanation import notes_on
from fairqr.graph.search.final_ranking import (
    Ranks,
    assemble,
    choose,
    final_step,
    queries_about,
)
from fairqr.graph.search.names import (
    Holders,
    NamedText,
    lookup_of_named,
    only_holders,
    with_vain_names,
)
from fairqr.graph.search.pages import FoundList, list_key
from fairqr.graph.search.parts import SearchParts
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.records import hits_of, records_of
from fairqr.graph.search.result import GroupKey, Measured, Round, Shares, StopReason
from fairqr.graph.search.state import (
    EvidenceKind,
    LookupRecord,
    QueryRecord,
    SearchState,
)
from fairqr.graph.search.stopping import decide_stop, expected_gain, groups_to_ask_about, kept_of
from fairqr.graph.search.target import TARGET_DEPTH, estimate_target
from fairqr.retrieval.engines import engine as engines
from fairqr.retrieval.fairness.claims import merits_of
from fairqr.retrieval.fairness.dimension import dimensions_of
from fairqr.retrieval.fairness.ranking import Ranking
from fairqr.retrieval.fairness.target import can_be_weights
from fairqr.retrieval.texts.words import sendable

MAX_QUERY_CHARACTERS = 5000

GROWING = ("rankings", "lookups", "iterations", "fair_lists", "warnings")
"""The lists of the state that nodes add to."""

MOSTLY_UNKNOWN = 0.5
"""We warn if more than this share of the exposure goes to documents without a label."""

GROUP_DEPTH = 200
"""How many documents a query with words of a group retrieves."""

GRACE = 0.25
"""Seconds after its deadline in which a refiner may still report its usage."""


async def prepare(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Check the query, the context, the engine and the models, before anything is searched."""
    query = _checked_query(state.get("query"))
    current_span().content("fairqr.query", query)
    found_before = _found_before(query, context, parts)
    dimensions = dimensions_of(parts.engine.schema, context.attributes, intersect=context.intersect)
    attributes = [dimension.attribute for dimension in dimensions]
    if context.target is not None:
        context.target.check(attributes)
    if context.rounds and found_before is None:
        await _require_refinement(context, parts)
    # Find wrong options and missing weights now.
    await final_step(context)
    ranker = parts.rankers.ranker_for(context)
    if ranker is not None and found_before is None:
        await ranker.start()
    warnings = [
        f"No population is stated for '{name}', so its target is the share of each group in "
        "what the query retrieves; state one in the source, or choose a target."
        for name in context.effective_target.without_population(attributes)
    ]
    trust = parts.trust(context)
    # The thread may contain an earlier run, of which nothing may be left.
    started = any(state.get(name) for name in GROWING)
    update: Update = {
        "query": query,
        "iteration": 0,
        "review": context.review,
        "weights": trust.weights.model_dump(),
        "rankings": [],
        "lookups": [],
        "iterations": [],
        "fair_lists": [],
        "corpus_shares": {},
        "target": {},
        "cost": None,
        "chosen": [],
        "lacking": [],
        "topic": None,
        "words": {},
        "refined_topic": None,
        "refinements": [],
        "usage": asdict(Usage()),
        "stop_reason": None,
        "warnings": warnings,
    }
    if found_before is not None:
        known = cast("Update", found_before.state)
        update |= {name: known[name] for name in update if name in known and name != "usage"}
    if started:
        update |= {name: Overwrite(update[name]) for name in GROWING}
        update["result"] = None
    return update


def _checked_query(query: object) -> str:
    """Return the query without white space around it.

    Raises:
        QueryError: There is none, or it is too long.
    """
    # Half a surrogate pair is not a character, and no client could send it.
    text = sendable(query).strip() if isinstance(query, str) else ""
    if not text:
        raise QueryError("The query is empty; write what to search for.")
    if len(text) > MAX_QUERY_CHARACTERS:
        raise QueryError(
            f"The query has {len(text)} characters; shorten it to at most {MAX_QUERY_CHARACTERS}."
        )
    return text


async def _require_refinement(context: Context, parts: SearchParts) -> None:
    """Check that engine and model can do what refinement needs."""
    engine = parts.engine
    engines.require(engine, "new_queries", "Refining the query", "set max_iterations to 0")
    if context.strategy.rerank == "original_query":
        engines.require(engine, "rescore", "The order 'original_query'")
    refiner = parts.refiner(context)
    if refiner is None:
        raise ModelUnavailableError(
            "No model is given to refine with; name one, or set ask to never."
        )
    await refiner.start()


async def retrieve(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Run the queries of the round: first the original one, later those with the model's words."""
    iteration = len(state["iterations"])
    record(iteration=iteration)
    if iteration == 0:
        return await _retrieve_original(state, context, parts)
    # A person may have changed the words since they were proposed.
    used = words_in_use(state, Pool(parts.engine, context, state).dimensions)
    state = cast("SearchState", {**state, **used})
    queries = words.refined_queries(state, context)
    answers = await _search(queries, context, parts.engine)
    answers, named, vain = await _with_whole_names(queries, answers, parts.engine)
    used["refinements"] = with_vain_names(used["refinements"], queries, vain)
    used |= words.without_unsearched(state, used["refinements"], queries)
    rankings = records_of(iteration, queries, answers, context, parts.engine.schema)
    found = cast("SearchState", {**state, "rankings": [*state["rankings"], *rankings]})
    lookups: list[LookupRecord] = []
    if context.words_are_evidence:
        lookups = await _looked_up(Pool(parts.engine, context, found), iteration)
        lookups += lookup_of_named(iteration, named)
    warnings = [text for text in _warnings_of(answers) if text not in state["warnings"]]
    return {
        **used,
        "iteration": iteration,
        "rankings": rankings,
        "lookups": lookups,
        "warnings": warnings,
    }


async def _retrieve_original(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Run the original query, and get what else the first round needs of the engine."""
    engine = parts.engine
    query = words.original_query(state["query"])
    answers = await _search([query], context, engine, is_original=True)
    rankings = records_of(0, [query], answers, context, engine.schema)
    update: Update = {
        "iteration": 0,
        "rankings": rankings,
        "warnings": _warnings_of(answers),
    }
    pool = Pool(engine, context, cast("SearchState", {**state, "rankings": rankings}))
    if not pool.engine_ranking.ids:
        nothing = f"No document of '{engine.name}' matches the query; try other words."
        return {**update, "warnings": [*update["warnings"], nothing]}
    if context.effective_target.parts.get("corpus") and "corpus_shares" in engine.capabilities:
        shares = await engine.corpus_shares()
        update["corpus_shares"] = {name: values.tolist() for name, values in shares.items()}
    ranker = parts.rankers.ranker_for(context)
    if ranker is not None:
        cost = await rankers.expected_cost(pool, ranker)
        update["cost"] = cost.model_dump()
    return update


async def _search(
    queries: Sequence[QueryRecord],
    context: Context,
    engine: engines.SearchEngine,
    *,
    is_original: bool = False,
) -> list[engines.Hits]:
    """Run queries in one round trip, each as deep as its kind needs."""
    # A person may have rejected all words.
    if not queries:
        return []
    depth = context.strategy.depth or context.k
    depths = {"query": max(depth, TARGET_DEPTH), "group": min(depth, GROUP_DEPTH)}
    if not context.words_are_evidence:
        depths["group"] = depth
    asked = [
        engines.Query(
            query["text"],
            depths.get(query["kind"], depth),
            with_titles=is_original,
            with_claims=is_original and context.aims_at_merit,
        )
        for query in queries
    ]
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "retrieval",
        "gen_ai.data_source.id": engine.name,
    }
    with span("retrieval", **attributes) as step:
        step.set("gen_ai.retrieval.top_k", max(query.n for query in asked))
        step.content("gen_ai.retrieval.query.text", "\n".join(query.text for query in asked))
        answers = await engines.searched(engine, asked)
        step.set("fairqr.documents", [len(hits) for hits in answers])
    return answers


async def _with_whole_names(
    queries: Sequence[QueryRecord],
    answers: Sequence[engines.Hits],
    engine: engines.SearchEngine,
) -> Holders:
    """Keep of what names found only the documents that hold one of the names whole."""
    ids: dict[str, None] = {}
    for query, hits in zip(queries, answers, strict=True):
        if query["names"]:
            ids |= dict.fromkeys(hits.ids)
    if not ids:
        return Holders(list(answers), [])
    documents = await engine.documents(list(ids))
    texts = {document.id: NamedText(document.title, document.text) for document in documents}
    return await asyncio.to_thread(only_holders, queries, answers, texts)


def _warnings_of(answers: Sequence[engines.Hits]) -> list[str]:
    """Return the distinct warnings of an engine about its answers."""
    warnings = [warning for hits in answers for warning in hits.warnings]
    return list(dict.fromkeys(warnings))


async def _looked_up(pool: Pool, iteration: int) -> list[LookupRecord]:
    """Ask the original query, and those of the topic, about documents that other queries found.

    An engine may estimate a document better when asked about it directly. An engine that cannot
    score given documents tells nothing more: its ranks alone count.
    """
    engine = pool.engine
    if not engine.capabilities & {"rescore", "relevance"}:
        return []
    kinds: list[EvidenceKind] = []
    queries: list[engines.Query] = []
    for ranking in pool.state["rankings"]:
        query = ranking["query"]
        if query["kind"] == "group":
            continue
        if query["kind"] != "query" and "relevance" not in engine.capabilities:
            continue
        ids = pool.not_asked(query["kind"])
        if "relevance" in engine.capabilities:
            ids += pool.found_far_down(query["kind"], iteration)
        about_given = queries_about(query["text"], ids)
        queries += about_given
        kinds += [query["kind"]] * len(about_given)
    if not queries:
        return []
    lookups: dict[EvidenceKind, LookupRecord] = {}
    for kind, hits in zip(kinds, await engines.searched(engine, queries), strict=True):
        empty = LookupRecord(iteration=iteration, kind=kind, scores={}, relevance={})
        lookup = lookups.setdefault(kind, empty)
        if "rescore" in engine.capabilities and kind == "query":
            lookup["scores"].update(zip(hits.ids, hits.scores, strict=True))
        if hits.relevance is not None:
            lookup["relevance"].update(zip(hits.ids, hits.relevance.tolist(), strict=True))
    return list(lookups.values())


async def measure(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Measure the exposure of the round's list against the target, and decide whether to stop.

    The default method has its fair list made here, since a round is judged by it.
    """
    iteration = state["iteration"]
    update: Update = {"iteration": iteration, "warnings": []}
    pool = Pool(parts.engine, context, state)
    if iteration == 0:
        update |= _targeted(pool)
        pool = pool.with_target(update["target"])
    baseline = pool.baseline
    ranking = pool.order(iteration) if iteration else baseline
    measured = pool.measured(ranking.ids)
    objective = None
    if context.strategy.final_step == "fair" and baseline.ids:
        fair_list = await pool.compute(partial(pool.fair_list, iteration))
        update["fair_lists"] = [fair_list]
        pool = pool.with_fair_list(fair_list)
        objective = pool.fair_lists[-1].objective
    round_ = Round(
        **dict(measured),
        index=iteration,
        queries=[it["query"]["text"] for it in state["rankings"] if it["iteration"] == iteration],
        topic=state["refined_topic"],
        refinements=state["refinements"],
        ids=ranking.ids[: context.k],
        objective=objective,
    )
    stop_reason: StopReason | None = "no_hits"
    if baseline.ids:
        stop_reason = decide_stop(
            [*pool.rounds, round_],
            context,
            is_spent=_is_spent(state, context, parts),
            promised=_promised(pool, context, parts),
        )
    current_span().evaluation("divergence", measured.divergence)
    record(iteration=iteration, exposure=measured.exposure, stop_reason=stop_reason)
    record(objective=None if objective is None else objective.value)
    if iteration == 0:
        update["warnings"] += _unlabelled(measured)
    return {**update, "iterations": [round_.model_dump()], "stop_reason": stop_reason}


def _is_spent(state: SearchState, context: Context, parts: SearchParts) -> bool:
    """Return whether the budget has no room for another question."""
    refiner = parts.refiner(context) if context.rounds else None
    return Spending(context, state).is_spent(tokens_a_question(refiner))


def _promised(pool: Pool, context: Context, parts: SearchParts) -> float:
    """Return what asking the model is expected to add; see :func:`expected_gain`."""
    if not pool.fair_lists or context.strategy.ask != "auto":
        return 0.0
    fair = pool.fair_lists[-1]
    relevance = pool.mean_relative_relevance(fair.ids)
    return expected_gain(parts.trust(context).share, relevance, fair.objective.fairness)


def _targeted(pool: Pool) -> Update:
    """Return the target, estimated from what the original query retrieved."""
    context = pool.context
    ranking = pool.engine_ranking
    if not ranking.ids:
        zeros = {d.name: dict.fromkeys(d.groups, 0.0) for d in pool.dimensions}
        return {"target": zeros}
    shares = {name: np.array(values) for name, values in pool.state["corpus_shares"].items()}
    relevance = pool.relative_relevance
    merits = merits_of(np.array(list(relevance.values())), pool.claims)
    by_id = dict(zip(relevance, merits.tolist(), strict=True))
    target = estimate_target(pool.table, pool.dimensions, ranking, context, shares, by_id)
    record(target=target)
    warnings = []
    uses_scores = context.effective_target.parts.get("retrieved")
    if uses_scores and not can_be_weights(ranking.scores):
        warnings.append(
            "The engine's scores cannot be used as weights, so the retrieved documents count by "
            "1/rank in the target."
        )
    return {"target": target, "warnings": warnings}


def _unlabelled(measured: Measured) -> list[str]:
    """Return a warning for each attribute that most of the baseline ranking has no label for."""
    return [
        f"{share:.0%} of the exposure of the baseline ranking went to documents without a label "
        f"for '{name}'; only the rest is measured."
        for name, share in measured.unknown.items()
        if share > MOSTLY_UNKNOWN
    ]


async def choose_group(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Choose the groups to ask the model about: who lacks most, those that lack, or all."""
    pool = Pool(parts.engine, context, state)
    target: Shares = {}
    for dimension in pool.dimensions:
        shares = state["target"][dimension.name]
        target[dimension.name] = {it: shares[it] for it in shares if dimension.is_named(it)}
    exposure = (pool.best_fair or kept_of(pool.rounds, context.strategy.final_round)).exposure
    limit = context.max_groups
    refiner = parts.refiner(context)
    questions_left = Spending(context, state).questions_left(tokens_a_question(refiner))
    if questions_left is not None:
        about_topic = int(_asks_topic(refiner, state, context))
        limit = max(0, min(limit, questions_left - about_topic))
    by = context.lack
    smoothing = context.smoothing
    which = context.strategy.groups
    chosen = groups_to_ask_about(target, exposure, which, limit, by, smoothing)
    lacking = groups_to_ask_about(target, exposure, "lacking", len(chosen), by, smoothing)
    record(groups=[f"{name}={group}" for name, group in chosen])
    return {"iteration": state["iteration"], "chosen": chosen, "lacking": lacking}


async def refine(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Ask the model for words of the topic and of the chosen groups, all at once."""
    refiner = cast("Refiner", parts.refiner(context))
    # A person may have changed all this since the groups were chosen.
    dimensions = Pool(parts.engine, context, state).dimensions
    chosen = groups_to_refine(state["chosen"], dimensions)
    in_use = checked_words(state, dimensions)
    state = cast("SearchState", {**state, **in_use, "chosen": chosen})
    update: Update = {"iteration": state["iteration"], **in_use}
    spent = Usage(**state["usage"])
    answered: list[Refinement] = []
    try:
        answers = await _ask(refiner, state, context, answered)
    except GraphBubbleUp:
        raise  # it asks a person
    except Exception as error:
        # Our refiners return a status instead. The other questions of the round are cancelled.
        logging.getLogger(__name__).exception("The refiner %s failed", refiner.name)
        current_span().set("error.type", type(error).__name__)
        return {
            **update,
            "refined_topic": None,
            "refinements": [],
            "usage": asdict(sum((answer.usage for answer in answered), spent)),
            "warnings": [f"The refiner {refiner.name} failed: {one_line(error, 300)}"],
            "stop_reason": "model_failed",
        }
    usage = asdict(sum((answer.usage for answer in answered), spent))
    for (name, group), answer in answers.groups.items():
        current_span().content(f"fairqr.keywords.{name}.{group}", answer.keywords)
    statuses = [f"{name}={group} {it.status}" for (name, group), it in answers.groups.items()]
    record(refinements=statuses)
    spending = Spending(context, cast("SearchState", {**state, "usage": usage}))
    is_spent = spending.is_spent(tokens_a_question(refiner))
    changes = words.after_refinement(state, context, answers, is_spent=is_spent)
    return {**update, "usage": usage, **changes}


async def _ask(
    refiner: Refiner, state: SearchState, context: Context, answered: list[Refinement]
) -> words.Answers:
    """Ask a refiner about the topic, if it was not asked yet, and about all chosen groups.

    Args:
        refiner: The refiner.
        state: The state of the run.
        context: The context of the run.
        answered: Gets each answer as it comes, so that its cost is known if another one fails.
    """
    chosen = state["chosen"]
    asks_topic = _asks_topic(refiner, state, context)
    questions = len(chosen) + int(asks_topic)
    may_ask_again = _may_ask_again(refiner, state, context, questions=questions)
    requests = _requests(chosen, state, context, may_ask_again=may_ask_again)
    if isinstance(refiner, RoundRefiner):
        answers = await refiner.refine_all(requests, hits_of(state["rankings"][0]))
        answered += answers
        return words.Answers(None, dict(zip(chosen, answers, strict=True)))
    deadline = seconds_left(context)
    asked = [
        _answer(refiner, partial(refiner.refine, request, deadline), deadline, answered, key)
        for key, request in zip(chosen, requests, strict=True)
    ]
    if asks_topic:
        request = TopicRequest(
            state["query"], context.seed, context.temperature, may_ask_again=may_ask_again
        )
        ask_topic = partial(cast("TopicRefiner", refiner).refine_topic, request, deadline)
        asked.append(_answer(refiner, ask_topic, deadline, answered))
    answers = await run_together(asked)
    topic = answers.pop() if asks_topic else None
    if context.strategy.groups == "most" and not context.words_are_evidence:
        answers = [take_in_turn(answer) for answer in answers]
    return words.Answers(topic, dict(zip(chosen, answers, strict=True)))


def _asks_topic(refiner: Refiner | None, state: SearchState, context: Context) -> bool:
    """Return whether the refiner is asked about the topic now: once in each search."""
    is_first_question = state["topic"] is None and len(state["iterations"]) == 1
    return context.words_are_evidence and is_first_question and isinstance(refiner, TopicRefiner)


def _may_ask_again(
    refiner: Refiner, state: SearchState, context: Context, *, questions: int
) -> bool:
    """Return whether the budget has room to ask each question twice."""
    questions_left = Spending(context, state).questions_left(tokens_a_question(refiner))
    return questions_left is None or questions_left >= 2 * questions


def _requests(
    chosen: Sequence[GroupKey], state: SearchState, context: Context, *, may_ask_again: bool
) -> list[GroupRequest]:
    """Return a question for each chosen group."""
    requests = []
    for name, group in chosen:
        in_use = state["words"].get(name, {}).get(group)
        request = GroupRequest(
            query=state["query"],
            attribute=name,
            group=group,
            keywords=in_use["keywords"] if in_use else [],
            seed=context.seed,
            temperature=context.temperature,
            may_ask_again=may_ask_again,
        )
        requests.append(request)
    return requests


async def _answer(
    refiner: Refiner,
    ask: Callable[[], Awaitable[Refinement]],
    deadline: float | None,
    answered: list[Refinement],
    key: GroupKey | tuple[None, None] = (None, None),
) -> Refinement:
    """Ask one question, and add the answer to the list.

    A refiner that ignores the deadline is cancelled soon after it.
    """
    attribute, group = key
    limit = asyncio.timeout(None if deadline is None else deadline + GRACE)
    with span("fairqr.refine_topic" if group is None else "fairqr.refine_group"):
        record(attribute=attribute, group=group)
        try:
            async with limit:
                answer = await ask()
        except TimeoutError:
            if not limit.expired():
                raise
            answer = Refinement("timeout", message=no_answer_within(refiner.name, deadline or 0))
        answered.append(answer)
        return answer


async def rerank(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Return a page of the list of the best round, re-ranked unless it is the fair list already."""
    pool = Pool(parts.engine, context, state)
    refiner = parts.refiner(context) if context.rounds else None
    notes = [] if refiner is None else notes_on(refiner.name, parts.trust(context))
    first = await choose(pool, _ranks(state, context, parts))
    parts.kept.add(list_key(state["query"], context), FoundList(state, first.by_model))
    result = await assemble(pool, first, refiner, notes)
    record_outcome(result.usage, result.prompts, refiner=result.model, ranker=result.ranker)
    record(best_iteration=result.best_iteration)
    current_span().evaluation("divergence", result.divergence)
    update: Update = {"result": result.model_dump(mode="json")}
    return {**update, "usage": asdict(usage_of(update["result"]))}


def _ranks(state: SearchState, context: Context, parts: SearchParts) -> Ranks | None:
    """Return what re-ranks the list by a model; None if nothing does.

    For a later page, it is as the model re-ranked the list for an earlier one.
    """
    ranker = parts.rankers.ranker_for(context)
    if ranker is None:
        return None
    kept = _found_before(state["query"], context, parts)
    if kept is None or kept.by_model is None:
        return partial(rankers.reranked, ranker=ranker)
    by_model = replace(kept.by_model, usage=Usage())

    async def as_before(pool: Pool, order: Ranking) -> rankers.ModelRanking:
        return by_model

    return as_before


def _found_before(query: str, context: Context, parts: SearchParts) -> FoundList | None:
    """Return what an earlier page was made of; None for a first page, and after a while."""
    if context.page == 1:
        return None
    return parts.kept.get(list_key(query, context))
