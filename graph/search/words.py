"""The model's words: what was proposed, what of it is in use, and the queries that are made of it.

The published loop (``fair-qr``) adds words to its one query. Where words are evidence of relevance,
each kind of them has a query of its own beside the original one; see
:func:`fairqr.retrieval.fairness.relevance.combined`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from fairqr.agents.refiners.cleaning import without_fields
from fairqr.agents.refiners.refiner import LeftOut, Refinement
from fairqr.graph.running import Update
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import GroupKey, RefinedGroup, RefinedTopic, Unused
from fairqr.graph.search.state import (
    GroupWords,
    QueryRecord,
    SearchState,
    TopicWords,
    with_update,
)

NOT_COUNTED = "is not searched for, since such words of this model do not count here"
PHRASES_INSTEAD = "is not searched for, since there are phrases"
IN_NO_QUERY = "is not searched for: no query of this round is made of such words"

NO_FAILURE = ("ok", "repeated", "unsupported")
"""The statuses of a refiner that answered, with or without new words."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a refiner answered in a round.

    Attributes:
        topic: About the topic; None if it was not asked.
        groups: About each chosen group.
    """

    topic: Refinement | None
    groups: Mapping[GroupKey, Refinement]

    def listed(self) -> list[Refinement]:
        """Return every answer."""
        answers = list(self.groups.values())
        return answers if self.topic is None else [self.topic, *answers]


def after_refinement(
    state: SearchState, context: Context, answers: Answers, *, is_spent: bool = False
) -> Update:
    """Return what the answers of a refiner change: the words in use, or why the loop ends.

    The loop ends if there are no new words: with ``budget`` if the model failed and the budget is
    spent, with ``model_failed`` if each answer failed, or else with ``no_new_words``.

    Args:
        state: The state of the run.
        context: The context of the run.
        answers: What the refiner answered.
        is_spent: Whether the budget has no room for another question.
    """
    if context.words_are_evidence:
        answers = _without_uncounted(answers, state["weights"])
    failed = [answer for answer in answers.listed() if answer.status not in NO_FAILURE]
    has_new_words = any(answer.status == "ok" for answer in answers.listed())
    # After some rounds, a loop normally ends without new words; in the first round we warn.
    is_first_round = len(state["iterations"]) == 1
    reported = failed
    if is_first_round and not has_new_words:
        reported = answers.listed()
    update = _records_of(answers)
    update["warnings"] = _distinct(answer.message for answer in reported)

    if has_new_words or _has_given_words(state, context):
        in_use: Update = {
            "topic": _topic_in_use(state, answers),
            "words": _words_in_use(state, answers),
        }
        if refined_queries(with_update(state, update | in_use), context):
            return update | in_use

    stop_reason = "no_new_words"
    if failed and is_spent:
        stop_reason = "budget"
    elif failed and len(failed) == len(answers.listed()):
        stop_reason = "model_failed"
    return {**update, "stop_reason": stop_reason}


def _records_of(answers: Answers) -> Update:
    """Return the answers as records of the state."""
    topic = None if answers.topic is None else _topic_record(answers.topic)
    groups = [_group_record(key, answer) for key, answer in answers.groups.items()]
    return {"refined_topic": topic, "refinements": groups}


def _has_given_words(state: SearchState, context: Context) -> bool:
    """Return whether a person gave words, before the model was asked, that no query has had."""
    earlier = _searched_texts(state)
    return any(query["text"] not in earlier for query in refined_queries(state, context))


def _searched_texts(state: SearchState) -> list[str]:
    """Return the texts of the queries that were run so far."""
    return [ranking["query"]["text"] for ranking in state["rankings"]]


def _without_uncounted(answers: Answers, weights: Mapping[str, float]) -> Answers:
    """Return the answers without what no query is made of, which is left out with the reason."""
    topic = answers.topic
    if topic is not None:
        fields = [field for field in ("topic", "queries", "passage") if weights[field] <= 0]
        # The queries with keywords of a group have the words of the topic, too.
        if "topic" in fields and _have_keyword_queries(answers):
            fields.remove("topic")
        topic = without_fields(topic, fields, NOT_COUNTED)
    groups = {}
    for key, answer in answers.groups.items():
        if weights["passage"] <= 0:
            answer = without_fields(answer, ["passage"], NOT_COUNTED)
        if answer.phrases:
            answer = without_fields(answer, ["keywords"], PHRASES_INSTEAD)
        groups[key] = answer
    return Answers(topic, groups)


def _have_keyword_queries(answers: Answers) -> bool:
    """Return whether the query of any group is made of keywords: if it has no phrases."""
    return any(answer.keywords and not answer.phrases for answer in answers.groups.values())


def _topic_in_use(state: SearchState, answers: Answers) -> TopicWords | None:
    """Return the words of the topic that are in use, with those of the answers."""
    earlier = state["topic"] or TopicWords(words=[], queries=[], passage="")
    words = list(earlier["words"])
    queries = list(earlier["queries"])
    passage = earlier["passage"]
    if answers.topic is not None and answers.topic.status == "ok":
        words += answers.topic.topic
        queries += answers.topic.queries
        passage = answers.topic.passage
    # Prompts for small models ask for words of the topic beside those of each group.
    for answer in answers.groups.values():
        words += answer.topic
    if not words and not queries and not passage:
        return None
    return TopicWords(words=_distinct(words), queries=_distinct(queries), passage=passage)


def _words_in_use(state: SearchState, answers: Answers) -> dict[str, dict[str, GroupWords]]:
    """Return the words of groups that are in use, with those of the answers."""
    in_use = {name: dict(groups) for name, groups in state["words"].items()}
    no_words = GroupWords(keywords=[], phrases=[], names=[], passage="")
    for (name, group), answer in answers.groups.items():
        if answer.status != "ok":
            continue
        groups = in_use.setdefault(name, {})
        earlier = groups.get(group) or no_words
        keywords = [word for word in earlier["keywords"] if word not in answer.drop]
        groups[group] = GroupWords(
            keywords=_distinct([*keywords, *answer.keywords]),
            phrases=_distinct([*earlier["phrases"], *answer.phrases]),
            names=_distinct([*earlier["names"], *answer.names]),
            passage=answer.passage or earlier["passage"],
        )
    return in_use


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _topic_record(answer: Refinement) -> dict[str, object]:
    topic = RefinedTopic(
        words=list(answer.topic),
        queries=list(answer.queries),
        passage=answer.passage,
        status=answer.status,
        left_out=_unused(answer.left_out),
    )
    return topic.model_dump()


def _group_record(key: GroupKey, answer: Refinement) -> dict[str, object]:
    attribute, group = key
    refined = RefinedGroup(
        attribute=attribute,
        group=group,
        keywords=list(answer.keywords),
        phrases=list(answer.phrases),
        names=list(answer.names),
        passage=answer.passage,
        dropped=list(answer.drop),
        reason=answer.reason,
        status=answer.status,
        left_out=_unused(answer.left_out),
    )
    return refined.model_dump()


def _unused(parts: Sequence[LeftOut]) -> list[Unused]:
    return [Unused(text=part.text, reason=part.reason) for part in parts]


def refined_queries(state: SearchState, context: Context) -> list[QueryRecord]:
    """Return the queries of a refined round, with all words in use; none if there are no words."""
    if context.words_are_evidence:
        return [*_topic_queries(state), *_group_queries(state)]
    return _expanded_queries(state, context)


def without_unsearched(
    state: SearchState,
    refinements: Sequence[dict[str, object]],
    queries: Sequence[QueryRecord],
) -> Update:
    """Move what no query has to what was left out, in the records of a round.

    Of a model's words, that was done when it answered; a person may have given more.

    Args:
        state: The state, with the words in use and the record of the topic.
        refinements: The records of groups.
        queries: The queries of this round.
    """
    texts = _searched_texts(state) + [query["text"] for query in queries]

    def is_searched(text: str) -> bool:
        return any(f" {text} " in f" {searched} " for searched in texts)

    groups = []
    for record in refinements:
        group = RefinedGroup.model_validate(record)
        group = _split(group, ("keywords", "phrases", "names"), is_searched)
        groups.append(group.model_dump())
    topic = _searched_topic(state, is_searched)
    return {
        "refined_topic": None if topic is None else topic.model_dump(),
        "refinements": groups,
    }


def _searched_topic(state: SearchState, is_searched: Callable[[str], bool]) -> RefinedTopic | None:
    """Return the record of the topic in this round, without what no query has."""
    fields = ("words", "queries")
    record = state["refined_topic"]
    if record is not None:
        return _split(RefinedTopic.model_validate(record), fields, is_searched)
    # The topic was not asked about in this round, but a person may have changed its words.
    in_use = RefinedTopic.model_validate(state["topic"] or {})
    topic: RefinedTopic = _split(in_use, fields, is_searched)
    return RefinedTopic(left_out=topic.left_out) if topic.left_out else None


Refined = TypeVar("Refined", RefinedTopic, RefinedGroup)


def _split(record: Refined, fields: Sequence[str], is_searched: Callable[[str], bool]) -> Refined:
    """Move the texts of some fields, and the passage, that are not searched to what is left out."""
    changes: dict[str, object] = {}
    unsearched: list[str] = []
    for field in fields:
        searched = []
        for text in getattr(record, field):
            if is_searched(text):
                searched.append(text)
            else:
                unsearched.append(text)
        changes[field] = searched
    if record.passage and not is_searched(record.passage):
        unsearched.append(record.passage)
        changes["passage"] = ""
    unused: list[Unused] = [Unused(text=text, reason=IN_NO_QUERY) for text in unsearched]
    changes["left_out"] = [*record.left_out, *unused]
    return record.model_copy(update=changes)


def _topic_queries(state: SearchState) -> list[QueryRecord]:
    """Return the queries of the topic whose evidence counts and that were not run yet."""
    topic = state["topic"]
    if topic is None:
        return []
    query = state["query"]
    weights = state["weights"]
    earlier_kinds = {ranking["query"]["kind"] for ranking in state["rankings"]}
    texts = {
        "topic": " ".join(topic["words"]),
        "queries": " ".join(topic["queries"]),
        "passage": topic["passage"],
    }
    queries = []
    for kind, text in texts.items():
        if text and weights[kind] > 0 and kind not in earlier_kinds:
            queries.append(_query(kind, f"{query} {text}"))
    return queries


def _group_queries(state: SearchState) -> list[QueryRecord]:
    """Return the queries of the groups with words that no earlier query had."""
    if state["weights"]["group"] <= 0:
        return []
    earlier = _searched_texts(state)
    queries = []
    for name, groups in state["words"].items():
        for group, words in groups.items():
            for query in _queries_of_group(state, (name, group), words):
                if query["text"] not in earlier:
                    queries.append(query)
    return queries


def _queries_of_group(state: SearchState, key: GroupKey, words: GroupWords) -> list[QueryRecord]:
    """Return the queries with the words of a group, one for each part.

    Names stand alone: with the query, its words would outweigh them.
    """
    query = state["query"]
    queries = []
    if words["phrases"]:
        text = " ".join([query, *words["phrases"]])
        queries.append(_query("group", text, key, "phrases"))
    elif words["keywords"]:
        text = " ".join([query, *_words_of_topic(state), *words["keywords"]])
        queries.append(_query("group", text, key, "keywords"))
    if words["names"]:
        text = " ".join(words["names"])
        queries.append(_query("group", text, key, "names", words["names"]))
    if words["passage"] and state["weights"]["passage"] > 0:
        text = f"{query} {words['passage']}"
        queries.append(_query("group", text, key, "passage"))
    return queries


def _words_of_topic(state: SearchState) -> list[str]:
    return state["topic"]["words"] if state["topic"] else []


def _expanded_queries(state: SearchState, context: Context) -> list[QueryRecord]:
    """Return the queries that contain the words, as the published loop makes them.

    If a round refines for one group, there is one query with all words so far. If it refines for
    several groups, one query has the words of the topic, and each group has a query with these
    words and its own.
    """
    keywords: dict[GroupKey, list[str]] = {}
    for name, groups in state["words"].items():
        for group, words in groups.items():
            if words["keywords"]:
                keywords[name, group] = words["keywords"]
    if context.strategy.groups == "most":
        return _query_for_one_group(state, keywords)

    query = state["query"]
    topic = _words_of_topic(state)
    queries = []
    if topic:
        queries.append(_query("topic", " ".join([query, *topic])))
    for key, own_words in keywords.items():
        text = " ".join([query, *_distinct([*topic, *own_words])])
        queries.append(_query("group", text, key, "keywords"))
    return queries


def _query_for_one_group(
    state: SearchState, keywords: Mapping[GroupKey, list[str]]
) -> list[QueryRecord]:
    """Return the query with the keywords of all groups so far, for the group of this round."""
    if not keywords:
        return []
    refined = [_key_of(record) for record in state["refinements"]]
    # A person may have replaced the group's words with words for another group.
    key = next(key for key in (*refined, *keywords) if key in keywords)
    words = _distinct(itertools.chain.from_iterable(keywords.values()))
    return [_query("group", " ".join([state["query"], *words]), key, "keywords")]


def _key_of(record: Mapping[str, object]) -> GroupKey:
    return cast("GroupKey", (record["attribute"], record["group"]))


def original_query(text: str) -> QueryRecord:
    """Return the query of the first round."""
    return _query("query", text)


def _query(
    kind: str,
    text: str,
    key: GroupKey | tuple[None, None] = (None, None),
    part: str = "",
    names: Sequence[str] = (),
) -> QueryRecord:
    attribute, group = key
    record = {"kind": kind, "part": part, "text": text, "names": list(names)}
    return cast("QueryRecord", {**record, "attribute": attribute, "group": group})
