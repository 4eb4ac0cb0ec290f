"""The model's words: what was proposed, what of it is in use, and the queries that are made of it.

The published loop (``fair-qr``) adds words to its one query. Where words are evidence of relevance,
each kind of them has a query of its own beside the original one; see
:func:`fairqr.retrieval.fairness.relevance.combined`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from fairqr.agents.refiners.cleaning import without_fields
from fairqr.agents.refiners.refiner import LeftOut, Refinement
from fairqr.graph.running import Update
from fairqr.graph.search.context import Context
from fairqr.graph.search.result import GroupKey, RefinedGroup, RefinedTopic, Unused
from fairqr.graph.search.state import GroupWords, QueryRecord, SearchState, TopicWords

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

    @property
    def all(self) -> list[Refinement]:
        """Every answer."""
        topic = [] if self.topic is None else [self.topic]
        return [*topic, *self.groups.values()]


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
        answers = _that_count(answers, state["weights"])
    failed = [answer for answer in answers.all if answer.status not in NO_FAILURE]
    helped = any(answer.status == "ok" for answer in answers.all)
    # After some rounds, a loop normally ends without new words; in the first round we warn.
    is_first_round = len(state["iterations"]) == 1
    reported = answers.all if is_first_round and not helped else failed
    update: Update = {
        "refined_topic": None if answers.topic is None else _topic_record(answers.topic),
        "refinements": [_group_record(key, answer) for key, answer in answers.groups.items()],
        "warnings": list(dict.fromkeys(answer.message for answer in reported)),
    }
    in_use: Update = {
        "topic": _topic_in_use(state, answers),
        "words": _words_in_use(state, answers),
    }
    has_words = helped or _has_given_words(state, context)
    if has_words and refined_queries(cast("SearchState", {**state, **update, **in_use}), context):
        return {**update, **in_use}
    reason = "no_new_words"
    if failed and is_spent:
        reason = "budget"
    elif failed and len(failed) == len(answers.all):
        reason = "model_failed"
    return {**update, "stop_reason": reason}


def _has_given_words(state: SearchState, context: Context) -> bool:
    """Return whether a person gave words, before the model was asked, that no query has had."""
    asked = {record["query"]["text"] for record in state["rankings"]}
    return any(query["text"] not in asked for query in refined_queries(state, context))


def _that_count(answers: Answers, weights: Mapping[str, float]) -> Answers:
    """Return the answers without what no query is made of, which is left out with the reason."""
    has_keywords = any(it.keywords and not it.phrases for it in answers.groups.values())
    topic = answers.topic
    if topic is not None:
        # The queries with keywords of a group have the words of the topic, too.
        fields = [] if weights["topic"] > 0 or has_keywords else ["topic"]
        fields += [field for field in ("queries", "passage") if weights[field] <= 0]
        topic = without_fields(topic, fields, NOT_COUNTED)
    groups = {}
    for key, answer in answers.groups.items():
        if weights["passage"] <= 0:
            answer = without_fields(answer, ["passage"], NOT_COUNTED)
        if answer.phrases:
            answer = without_fields(answer, ["keywords"], PHRASES_INSTEAD)
        groups[key] = answer
    return Answers(topic, groups)


def _topic_in_use(state: SearchState, answers: Answers) -> TopicWords | None:
    """Return the words of the topic that are in use, with those of the answers."""
    known = state["topic"]
    words = list(known["words"]) if known else []
    queries = list(known["queries"]) if known else []
    passage = known["passage"] if known else ""
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
    for (name, group), answer in answers.groups.items():
        if answer.status != "ok":
            continue
        groups = in_use.setdefault(name, {})
        known = groups.get(group) or GroupWords(keywords=[], phrases=[], names=[], passage="")
        kept = [word for word in known["keywords"] if word not in answer.drop]
        groups[group] = GroupWords(
            keywords=_distinct([*kept, *answer.keywords]),
            phrases=_distinct([*known["phrases"], *answer.phrases]),
            names=_distinct([*known["names"], *answer.names]),
            passage=answer.passage or known["passage"],
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
    texts = [record["query"]["text"] for record in state["rankings"]]
    texts += [query["text"] for query in queries]

    def is_searched(text: str) -> bool:
        return any(f" {text} " in f" {searched} " for searched in texts)

    asked_about = state["refined_topic"]  # None if the topic was not asked about in this round
    topic = RefinedTopic.model_validate(asked_about or state["topic"] or {})
    topic = _split(topic, ("words", "queries"), is_searched)
    if asked_about is None:
        topic = RefinedTopic(left_out=topic.left_out)
    groups = [
        _split(RefinedGroup.model_validate(record), ("keywords", "phrases", "names"), is_searched)
        for record in refinements
    ]
    is_told = asked_about is not None or topic.left_out
    return {
        "refined_topic": topic.model_dump() if is_told else None,
        "refinements": [group.model_dump() for group in groups],
    }


Refined = TypeVar("Refined", RefinedTopic, RefinedGroup)


def _split(record: Refined, fields: Sequence[str], is_searched: Callable[[str], bool]) -> Refined:
    """Move the texts of some fields, and the passage, that are not searched to what is left out."""
    changes: dict[str, object] = {}
    unsearched: list[str] = []
    for field in fields:
        given = getattr(record, field)
        searched = [text for text in given if is_searched(text)]
        unsearched += [text for text in given if text not in searched]
        changes[field] = searched
    if record.passage and not is_searched(record.passage):
        unsearched.append(record.passage)
        changes["passage"] = ""
    changes["left_out"] = [
        *record.left_out,
        *(Unused(text=text, reason=IN_NO_QUERY) for text in unsearched),
    ]
    return record.model_copy(update=changes)


def _topic_queries(state: SearchState) -> list[QueryRecord]:
    """Return the queries of the topic whose evidence counts and that were not run yet."""
    topic = state["topic"]
    if topic is None:
        return []
    query = state["query"]
    weights = state["weights"]
    asked = {record["query"]["kind"] for record in state["rankings"]}
    texts = {
        "topic": " ".join(topic["words"]),
        "queries": " ".join(topic["queries"]),
        "passage": topic["passage"],
    }
    queries = []
    for kind, text in texts.items():
        if text and weights[kind] > 0 and kind not in asked:
            queries.append(_query(kind, f"{query} {text}"))
    return queries


def _group_queries(state: SearchState) -> list[QueryRecord]:
    """Return the queries of the groups with words that no earlier query had."""
    if state["weights"]["group"] <= 0:
        return []
    asked = {record["query"]["text"] for record in state["rankings"]}
    queries = []
    for name, groups in state["words"].items():
        for group, words in groups.items():
            for query in _queries_of_group(state, (name, group), words):
                if query["text"] not in asked:
                    queries.append(query)
    return queries


def _queries_of_group(state: SearchState, key: GroupKey, words: GroupWords) -> list[QueryRecord]:
    """Return the queries with the words of a group, one for each part.

    Names stand alone: with the query, its words would outweigh them.
    """
    query = state["query"]
    topic = state["topic"]["words"] if state["topic"] else []
    queries = []
    if words["phrases"]:
        queries.append(_query("group", " ".join([query, *words["phrases"]]), key, "phrases"))
    elif words["keywords"]:
        text = " ".join([query, *topic, *words["keywords"]])
        queries.append(_query("group", text, key, "keywords"))
    if words["names"]:
        text = " ".join(words["names"])
        queries.append(_query("group", text, key, "names", words["names"]))
    if words["passage"] and state["weights"]["passage"] > 0:
        queries.append(_query("group", f"{query} {words['passage']}", key, "passage"))
    return queries


def _expanded_queries(state: SearchState, context: Context) -> list[QueryRecord]:
    """Return the queries that contain the words, as the published loop makes them.

    If a round refines for one group, there is one query with all words so far. If it refines for
    several groups, one query has the words of the topic, and each group has a query with these
    words and its own.
    """
    query = state["query"]
    topic = state["topic"]["words"] if state["topic"] else []
    in_use: dict[GroupKey, list[str]] = {}
    for name, groups in state["words"].items():
        for group, words in groups.items():
            if words["keywords"]:
                in_use[name, group] = words["keywords"]
    if context.strategy.groups == "most":
        if not in_use:
            return []
        all_words = [word for keywords in in_use.values() for word in keywords]
        refined = [_key_of(record) for record in state["refinements"]]
        # A person may have replaced the group's words with words for another group.
        key = next(key for key in (*refined, *in_use) if key in in_use)
        return [_query("group", " ".join([query, *_distinct(all_words)]), key, "keywords")]
    queries = []
    if topic:
        queries.append(_query("topic", " ".join([query, *topic])))
    for key, keywords in in_use.items():
        text = " ".join([query, *_distinct([*topic, *keywords])])
        queries.append(_query("group", text, key, "keywords"))
    return queries


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
