"""Checks what a person changed: in an answer to ``review``, or in the state of a paused graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ValidationError

from fairqr.agents.refiners.cleaning import tidy
from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.graph.running import Update
from fairqr.graph.search.result import GroupKey, RefinedGroup, RefinedTopic
from fairqr.graph.search.state import SearchState
from fairqr.retrieval.fairness.dimension import Dimension
from fairqr.retrieval.sources.schema import UNKNOWN

_FORM = (
    'Give "topic" (a list of words) and "words" (a list for each attribute and group), '
    "or true to let the model's words stand."
)

FIELDS = ("keywords", "phrases", "names")
"""The lists of words that a group may have."""


def _read_list(field: str) -> BeforeValidator:
    """Let a list of texts stand for an object that has only this field."""

    def read(value: object) -> object:
        if isinstance(value, list | tuple):
            return {field: value}
        if value is None or isinstance(value, Mapping | BaseModel):
            return value
        raise ValueError(f"it must be a list of texts, or an object with '{field}'")

    return BeforeValidator(read)


def _tidied(texts: list[str]) -> list[str]:
    """Return texts on one line each, without empty ones."""
    return [line for line in map(tidy, texts) if line]


Texts = Annotated[list[str], AfterValidator(_tidied)]


class TopicAnswer(BaseModel, extra="forbid"):
    """The words of the topic, as a person gives them."""

    words: Texts = []
    queries: Texts = []
    passage: str = ""


class GroupAnswer(BaseModel, extra="forbid"):
    """The words of a group, as a person gives them."""

    keywords: Texts = []
    phrases: Texts = []
    names: Texts = []
    passage: str = ""


class ReviewAnswer(BaseModel, extra="forbid"):
    """What a person answers.

    Attributes:
        topic: The words of the topic, or an object of them; left out, they stay as the model
            proposed them.
        words: By attribute and group: the keywords of the group, or an object of its words. They
            replace the words of all groups; left out, those stay.
    """

    topic: Annotated[TopicAnswer, _read_list("words")] | None = None
    words: dict[str, dict[str, Annotated[GroupAnswer, _read_list("keywords")]]] | None = None


def read_answer(answer: object, dimensions: Sequence[Dimension]) -> Update:
    """Return what a person's answer changes in the state; nothing for True.

    LangGraph takes an empty answer for none, so True says that the words stand.

    Raises:
        InputError: It is not of the form of :class:`ReviewAnswer`, or names an unknown group.
    """
    if answer is True:
        return {}
    if not isinstance(answer, Mapping):
        raise InputError(f"The answer must be an object, not {type(answer).__name__}. {_FORM}")
    try:
        review = ReviewAnswer.model_validate(answer)
    except ValidationError as error:
        field, reason = first_problem(error)
        wrong = f"wrong at {field}" if field else "wrong"
        raise InputError(f"The answer is {wrong}: {reason}. {_FORM}") from None

    update: Update = {}
    if review.topic is not None:
        update["topic"] = review.topic.model_dump()
    if review.words is not None:
        _check_groups(review.words, dimensions)
        update["words"] = review.model_dump()["words"]
    return update


def _check_groups(
    words: Mapping[str, Mapping[str, object]], dimensions: Sequence[Dimension]
) -> None:
    """Refuse words of attributes and groups that the search does not have."""
    groups_by_name = {dimension.name: dimension.groups for dimension in dimensions}
    for name, groups in words.items():
        if name not in groups_by_name:
            raise InputError(
                f"There is no attribute '{one_line(name, 60)}' in this search; use "
                f"{', '.join(groups_by_name)}."
            )
        usable = [group for group in groups_by_name[name] if group != UNKNOWN]
        for group in groups:
            if group not in usable:
                raise InputError(
                    f"There is no group '{one_line(group, 60)}' of {name}; use {', '.join(usable)}."
                )


def groups_to_refine(chosen: object, dimensions: Sequence[Dimension]) -> list[GroupKey]:
    """Check the groups to ask the model about, which a person may have changed in the state.

    Raises:
        InputError: They are no list of pairs of an attribute and a group, or one does not exist.
    """
    # A stored state has lists in place of tuples.
    pairs: list[Any] = list(chosen) if isinstance(chosen, list | tuple) else [chosen]
    keys: list[GroupKey] = []
    for pair in pairs:
        is_pair = isinstance(pair, list | tuple) and len(pair) == 2
        if not is_pair or not all(isinstance(name, str) for name in pair):
            raise InputError(
                f"'chosen' must be a list of pairs of an attribute and a group, not "
                f"{one_line(repr(chosen), 80)}."
            )
        name, group = pair
        keys.append((name, group))
        _check_groups({name: {group: ()}}, dimensions)
    return keys


def checked_words(state: SearchState, dimensions: Sequence[Dimension]) -> Update:
    """Return the words in use, which a person may have changed, in the form of the state.

    Raises:
        InputError: The words are of a wrong form, or of an unknown group.
    """
    in_use = {"topic": state["topic"], "words": state["words"]}
    return {"words": {}, **read_answer(in_use, dimensions)}


def words_in_use(state: SearchState, dimensions: Sequence[Dimension]) -> Update:
    """Check the words in use, which a person may have changed, and list them for the result.

    Returns:
        The words, and the records of what was refined in this round, with these words.

    Raises:
        InputError: The words are of a wrong form, or of an unknown group.
    """
    update = checked_words(state, dimensions)
    refined: dict[GroupKey, RefinedGroup] = {}
    for record in state["refinements"]:
        proposed = RefinedGroup(**record)
        name = proposed.attribute
        group = proposed.group
        in_use = update["words"].get(name, {}).get(group) or GroupAnswer().model_dump()
        added = _added_words(state, (name, group), in_use)
        refined[name, group] = proposed.model_copy(update=added)

    # A person may have given words of groups that the model was not asked about.
    for name, groups in update["words"].items():
        for group, in_use in groups.items():
            added = _added_words(state, (name, group), in_use)
            if (name, group) not in refined and any(added.values()):
                refined[name, group] = RefinedGroup(attribute=name, group=group, **added)
    update["refinements"] = [record.model_dump() for record in refined.values()]

    if state["refined_topic"] is not None:
        topic_words = update.get("topic") or TopicAnswer().model_dump()
        topic = RefinedTopic(**state["refined_topic"]).model_copy(update=topic_words)
        update["refined_topic"] = topic.model_dump()
    return update


def _added_words(state: SearchState, key: GroupKey, in_use: Mapping[str, Any]) -> dict[str, Any]:
    """Return the words of a group that no earlier round has added."""
    earlier: dict[str, set[str]] = {field: set() for field in FIELDS}
    passages: set[str] = set()
    for round_ in state["iterations"]:
        for record in round_["refinements"]:
            if (record["attribute"], record["group"]) == key:
                for field in FIELDS:
                    earlier[field].update(record[field])
                passages.add(record["passage"])

    added: dict[str, Any] = {}
    for field in FIELDS:
        added[field] = [word for word in in_use[field] if word not in earlier[field]]
    passage = in_use["passage"]
    added["passage"] = "" if passage in passages else passage
    return added
