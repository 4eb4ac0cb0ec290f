"""The nodes of a search, in the order in which they run.

Each is a function of the state, the context of the run and the parts of the graph, and returns what
it changes in the state.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import cast

import numpy as np
from langgraph.errors import GraphBubbleUp
from langgraph.types import Overwrite

from fairqr.agents.models.replies import Usage
from fairqr.agents.refiners.refiner import Refiner
from fairqr.base.errors import ModelUnavailableError, QueryError, one_line
from fairqr.base.telemetry import current_span
from fairqr.graph.running import Update, record, record_outcome, usage_of
from fairqr.graph.search.assembly import assemble
from fairqr.graph.search.budget import Spending, tokens_a_question
from fairqr.graph.search.context import Context
from fairqr.graph.search.edits import checked_words, groups_to_refine, words_in_use
from fairqr.graph.search.explanation import notes_on
from fairqr.graph.search.final_ranking import Ranks, choose, final_step
from fairqr.graph.search.names import lookup_of_named, with_vain_names
from fairqr.graph.search.pages import FoundList, list_key
from fairqr.graph.search.parts import SearchParts
from fairqr.graph.search.pool import Pool
from fairqr.graph.search.questions import Questions, asks_about_topic
from fairqr.graph.search.rankers import ModelRanking, expected_cost, reranked
from fairqr.graph.search.records import records_of
from fairqr.graph.search.result import Measured, Round, Shares, StopReason
from fairqr.graph.search.searches import keep_whole_names, look_up, run_queries, warnings_of
from fairqr.graph.search.state import LookupRecord, SearchState, with_update
from fairqr.graph.search.stopping import decide_stop, expected_gain, groups_to_ask_about, kept_of
from fairqr.graph.search.target import estimate_target
from fairqr.graph.search.words import (
    Answers,
    after_refinement,
    original_query,
    refined_queries,
    without_unsearched,
)
from fairqr.retrieval.engines.engine import require
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


async def prepare(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Check the query, the context, the engine and the models, before anything is searched."""
    query = _checked_query(state.get("query"))
    current_span().content("fairqr.query", query)
    dimensions = dimensions_of(parts.engine.schema, context.attributes, intersect=context.intersect)
    attributes = [dimension.attribute for dimension in dimensions]
    if context.target is not None:
        context.target.check(attributes)
    earlier_page = _found_before(query, context, parts)
    if context.rounds and earlier_page is None:
        await _require_refinement(context, parts)
    # Find wrong options and missing weights now.
    await final_step(context)
    ranker = parts.rankers.ranker_for(context)
    if ranker is not None and earlier_page is None:
        await ranker.start()

    update = _first_state(query, context, parts)
    for name in context.effective_target.without_population(attributes):
        warning = (
            f"No population is stated for '{name}', so its target is the share of each group in "
            "what the query retrieves; state one in the source, or choose a target."
        )
        update["warnings"].append(warning)
    if earlier_page is not None:
        update |= _state_to_reuse(earlier_page, update)

    # The thread may contain an earlier run. Nothing of it may remain.
    has_earlier_run = any(state.get(name) for name in GROWING)
    if has_earlier_run:
        update |= {name: Overwrite(update[name]) for name in GROWING}
        update["result"] = None
    return update


def _first_state(query: str, context: Context, parts: SearchParts) -> Update:
    """Return the state of a run before anything was searched."""
    return {
        "query": query,
        "iteration": 0,
        "review": context.review,
        "weights": parts.trust(context).weights.model_dump(),
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
        "warnings": [],
    }


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


def _state_to_reuse(earlier_page: FoundList, update: Update) -> Update:
    """Return what a later page takes of the state that an earlier page was made of."""
    state = cast("Update", earlier_page.state)
    # What the models of the earlier page cost is not counted twice.
    return {name: state[name] for name in update if name in state and name != "usage"}


async def _require_refinement(context: Context, parts: SearchParts) -> None:
    """Check that engine and model can do what refinement needs."""
    engine = parts.engine
    require(engine, "new_queries", "Refining the query", "set max_iterations to 0")
    if context.strategy.rerank == "original_query":
        require(engine, "rescore", "The order 'original_query'")
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
    update = words_in_use(state, Pool(parts.engine, context, state).dimensions)
    state = with_update(state, update)
    queries = refined_queries(state, context)
    answers = await run_queries(queries, context, parts.engine)
    holders = await keep_whole_names(queries, answers, parts.engine)
    update["refinements"] = with_vain_names(update["refinements"], queries, holders.vain)
    update |= without_unsearched(state, update["refinements"], queries)

    rankings = records_of(iteration, queries, holders.answers, context, parts.engine.schema)
    lookups: list[LookupRecord] = []
    if context.words_are_evidence:
        found_state = with_update(state, {"rankings": [*state["rankings"], *rankings]})
        pool = Pool(parts.engine, context, found_state)
        lookups = await look_up(pool, iteration)
        lookups += lookup_of_named(iteration, holders.named)
    warnings = [text for text in warnings_of(holders.answers) if text not in state["warnings"]]
    return {
        **update,
        "iteration": iteration,
        "rankings": rankings,
        "lookups": lookups,
        "warnings": warnings,
    }


async def _retrieve_original(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Run the original query, and get what else the first round needs of the engine."""
    engine = parts.engine
    query = original_query(state["query"])
    answers = await run_queries([query], context, engine, is_original=True)
    rankings = records_of(0, [query], answers, context, engine.schema)
    update: Update = {
        "iteration": 0,
        "rankings": rankings,
        "warnings": warnings_of(answers),
    }
    pool = Pool(engine, context, with_update(state, update))
    if not pool.engine_ranking.ids:
        no_match = f"No document of '{engine.name}' matches the query; try other words."
        update["warnings"].append(no_match)
        return update

    needs_corpus_shares = context.effective_target.parts.get("corpus")
    if needs_corpus_shares and "corpus_shares" in engine.capabilities:
        shares = await engine.corpus_shares()
        update["corpus_shares"] = {name: values.tolist() for name, values in shares.items()}
    ranker = parts.rankers.ranker_for(context)
    if ranker is not None:
        cost = await expected_cost(pool, ranker)
        update["cost"] = cost.model_dump()
    return update


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
    ranking = pool.order(iteration) if iteration else pool.baseline
    measured = pool.measured(ranking.ids)
    if iteration == 0:
        update["warnings"] += _unlabelled(measured)

    objective = None
    if context.strategy.final_step == "fair" and pool.baseline.ids:
        fair_list = await pool.compute(partial(pool.fair_list, iteration))
        update["fair_lists"] = [fair_list]
        pool = pool.with_fair_list(fair_list)
        objective = pool.fair_lists[-1].objective
    round_ = Round(
        **dict(measured),
        index=iteration,
        queries=_texts_of_round(state, iteration),
        topic=state["refined_topic"],
        refinements=state["refinements"],
        ids=ranking.ids[: context.k],
        objective=objective,
    )
    stop_reason = _stop_reason(pool, round_, parts)

    current_span().evaluation("divergence", measured.divergence)
    record(iteration=iteration, exposure=measured.exposure, stop_reason=stop_reason)
    record(objective=None if objective is None else objective.value)
    return {**update, "iterations": [round_.model_dump()], "stop_reason": stop_reason}


def _texts_of_round(state: SearchState, iteration: int) -> list[str]:
    """Return the queries of a round."""
    return [
        ranking["query"]["text"]
        for ranking in state["rankings"]
        if ranking["iteration"] == iteration
    ]


def _stop_reason(pool: Pool, round_: Round, parts: SearchParts) -> StopReason | None:
    """Return why the loop ends after a round that was just measured; None if it goes on."""
    if not pool.baseline.ids:
        return "no_hits"
    context = pool.context
    refiner = parts.refiner(context) if context.rounds else None
    spending = Spending(context, pool.state)
    return decide_stop(
        [*pool.rounds, round_],
        context,
        is_spent=spending.is_spent(tokens_a_question(refiner)),
        promised=_promised(pool, parts),
    )


def _promised(pool: Pool, parts: SearchParts) -> float:
    """Return what asking the model is expected to add; see :func:`expected_gain`."""
    context = pool.context
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
        zeros = {}
        for dimension in pool.dimensions:
            zeros[dimension.name] = dict.fromkeys(dimension.groups, 0.0)
        return {"target": zeros}

    corpus_shares = {}
    for name, values in pool.state["corpus_shares"].items():
        corpus_shares[name] = np.array(values)
    relevance = pool.relative_relevance
    merits = merits_of(np.array(list(relevance.values())), pool.claims)
    merit_by_id = dict(zip(relevance, merits.tolist(), strict=True))
    target = estimate_target(
        pool.table, pool.dimensions, ranking, context, corpus_shares, merit_by_id
    )
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
        target[dimension.name] = {}
        for group, share in state["target"][dimension.name].items():
            if dimension.is_named(group):
                target[dimension.name][group] = share
    best = pool.best_fair or kept_of(pool.rounds, context.strategy.final_round)

    limit = context.max_groups
    refiner = parts.refiner(context)
    questions_left = Spending(context, state).questions_left(tokens_a_question(refiner))
    if questions_left is not None:
        about_topic = int(asks_about_topic(refiner, state, context))
        limit = max(0, min(limit, questions_left - about_topic))

    groups_to_ask = partial(
        groups_to_ask_about, target, best.exposure, lack=context.lack, smoothing=context.smoothing
    )
    chosen = groups_to_ask(groups=context.strategy.groups, limit=limit)
    lacking = groups_to_ask(groups="lacking", limit=len(chosen))
    record(groups=[f"{name}={group}" for name, group in chosen])
    return {"iteration": state["iteration"], "chosen": chosen, "lacking": lacking}


async def refine(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Ask the model for words of the topic and of the chosen groups, all at once."""
    refiner = cast("Refiner", parts.refiner(context))
    # A person may have changed all this since the groups were chosen.
    dimensions = Pool(parts.engine, context, state).dimensions
    chosen = groups_to_refine(state["chosen"], dimensions)
    in_use = checked_words(state, dimensions)
    state = with_update(state, {**in_use, "chosen": chosen})
    update: Update = {"iteration": state["iteration"], **in_use}
    questions = Questions(refiner, state, context)
    try:
        answers = await questions.ask()
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
            "usage": asdict(questions.usage),
            "warnings": [f"The refiner {refiner.name} failed: {one_line(error, 300)}"],
            "stop_reason": "model_failed",
        }

    _record_answers(answers)
    usage = asdict(questions.usage)
    spending = Spending(context, with_update(state, {"usage": usage}))
    is_spent = spending.is_spent(tokens_a_question(refiner))
    changes = after_refinement(state, context, answers, is_spent=is_spent)
    return {**update, "usage": usage, **changes}


def _record_answers(answers: Answers) -> None:
    """Record the status of each answer in the span of the node, and the words of groups."""
    statuses = []
    for (name, group), answer in answers.groups.items():
        current_span().content(f"fairqr.keywords.{name}.{group}", answer.keywords)
        statuses.append(f"{name}={group} {answer.status}")
    record(refinements=statuses)


async def rerank(state: SearchState, context: Context, parts: SearchParts) -> Update:
    """Return a page of the list of the best round, re-ranked unless it is the fair list already."""
    pool = Pool(parts.engine, context, state)
    refiner = parts.refiner(context) if context.rounds else None
    notes: Sequence[str] = ()
    if refiner is not None:
        notes = notes_on(refiner.name, parts.trust(context))
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
    earlier_page = _found_before(state["query"], context, parts)
    if earlier_page is None or earlier_page.by_model is None:
        return partial(reranked, ranker=ranker)
    by_model = replace(earlier_page.by_model, usage=Usage())

    async def rank_as_before(pool: Pool, order: Ranking) -> ModelRanking:
        return by_model

    return rank_as_before


def _found_before(query: str, context: Context, parts: SearchParts) -> FoundList | None:
    """Return what an earlier page was made of; None for a first page, and after a while."""
    if context.page == 1:
        return None
    return parts.kept.get(list_key(query, context))
