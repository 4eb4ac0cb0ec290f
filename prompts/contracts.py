"""Contracts of prompts: what the code gives to each kind of prompt, and what it needs back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fairqr.base.errors import PromptError
from fairqr.prompts.template import PromptTemplate


@dataclass(frozen=True, slots=True)
class Contract:
    """The interface between a kind of prompt and the code that uses it.

    Attributes:
        inputs: The input variables that a prompt may use.
        needed_inputs: The input variables that it must use.
        outputs: The fields that a reply may have.
        needed_outputs: The fields that a reply must have.
        fields: The fields of a document that its ``item`` may use; if empty, it has no item.
        needed_fields: The fields of a document that its ``item`` must use.
    """

    inputs: frozenset[str]
    needed_inputs: frozenset[str]
    outputs: frozenset[str] = frozenset()
    needed_outputs: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()
    needed_fields: frozenset[str] = frozenset()


def _answers(fields: Iterable[str], needed: Iterable[str]) -> Contract:
    """Return the contract of a prompt that asks for a text based on documents."""
    both = frozenset({"question", "documents"})
    return Contract(both, both, fields=frozenset(fields), needed_fields=frozenset(needed))


def _judges(*outputs: str) -> Contract:
    """Return the contract of a prompt that asks whether a text entails another."""
    both, fields = frozenset({"premise", "hypothesis"}), frozenset(outputs)
    return Contract(both, both, fields, fields)


CONTRACTS = {
    "refine": Contract(
        inputs=frozenset({"query", "attribute", "group", "keywords"}),
        needed_inputs=frozenset({"query", "group"}),
        outputs=frozenset({"topic", "keywords", "drop", "reason"}),
        needed_outputs=frozenset({"keywords"}),
    ),
    "answer": _answers({"number", "title", "text"}, {"text"}),
    "names": _answers({"number", "title", "text"}, {"title"}),
    # The fields of documents of the LaMP tasks; see fairqr.evaluation.lamp.
    "lamp1": _answers({"title", "abstract"}, {"title"}),
    "lamp2": _answers({"description", "tag"}, {"description", "tag"}),
    "lamp3": _answers({"text", "score"}, {"text", "score"}),
    "lamp4": _answers({"title", "text"}, {"title"}),
    "lamp5": _answers({"title", "abstract"}, {"title"}),
    "lamp6": _answers({"title", "text"}, {"title"}),
    "lamp7": _answers({"text"}, {"text"}),
    # The first asks a model for the probability of Yes, the second for a JSON object.
    "attribute": _judges(),
    "attribute_json": _judges("entailed"),
    "listwise": Contract(
        inputs=frozenset({"group", "query", "passages", "number"}),
        needed_inputs=frozenset({"group", "query", "passages"}),
        fields=frozenset({"number", "passage"}),
        needed_fields=frozenset({"number", "passage"}),
    ),
    # The reply is A or B; see fairqr.agents.ranking.pairwise_reply.
    "pairwise": Contract(
        inputs=frozenset({"group", "query", "first", "second"}),
        needed_inputs=frozenset({"group", "query", "first", "second"}),
    ),
}


def check_contract(template: PromptTemplate) -> None:
    """Check that the code can use a prompt.

    Raises:
        PromptError: A placeholder, an output or a field is unknown or missing.
    """
    contract = CONTRACTS.get(template.id)
    name = f"{template.id}/{template.version}"
    if contract is None:
        raise PromptError(
            f"The prompt {name} is of an unknown kind; choose one of "
            f"{', '.join(sorted(CONTRACTS))}."
        )
    inputs, outputs = set(template.input_variables), set(template.output)
    fields = set(template.item_variables)
    for what, extra, missing, allowed in (
        ("placeholder", inputs - contract.inputs, contract.needed_inputs - inputs, contract.inputs),
        ("output", outputs - contract.outputs, contract.needed_outputs - outputs, contract.outputs),
        (
            "field of the item",
            fields - contract.fields,
            contract.needed_fields - fields,
            contract.fields,
        ),
    ):
        if extra:
            raise PromptError(
                f"The prompt {name} has the {what} '{min(extra)}', which is unknown; it may "
                f"have {', '.join(sorted(allowed)) or 'none'}."
            )
        if missing:
            raise PromptError(f"The prompt {name} lacks the {what} '{min(missing)}'; add it.")
