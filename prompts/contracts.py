"""Contracts of prompts: what the code gives to each kind of prompt, and what it needs back."""

from __future__ import annotations

from dataclasses import dataclass

from fairqr.base.errors import PromptError
from fairqr.prompts.template import PromptTemplate


@dataclass(frozen=True, slots=True)
class Contract:
    """The interface between a kind of prompt and the code that uses it.

    Each attribute is names separated by spaces. A prompt must have them, but for those that end
    with a question mark.

    Attributes:
        inputs: The input variables of the prompt.
        outputs: The fields of the reply.
        fields: The fields of a document in its ``item``; without any, it has no item.
    """

    inputs: str
    outputs: str = ""
    fields: str = ""


_DOCUMENTS = "question documents"
_PAIR = "premise hypothesis"

CONTRACTS = {
    "refine": Contract("query group attribute? keywords?", "keywords topic? drop? reason?"),
    "answer": Contract(_DOCUMENTS, fields="text title? number?"),
    "names": Contract(_DOCUMENTS, fields="title text? number?"),
    # The fields of documents of the LaMP tasks; see fairqr.evaluation.lamp.
    "lamp1": Contract(_DOCUMENTS, fields="title abstract?"),
    "lamp2": Contract(_DOCUMENTS, fields="description tag"),
    "lamp3": Contract(_DOCUMENTS, fields="text score"),
    "lamp4": Contract(_DOCUMENTS, fields="title text?"),
    "lamp5": Contract(_DOCUMENTS, fields="title abstract?"),
    "lamp6": Contract(_DOCUMENTS, fields="title text?"),
    "lamp7": Contract(_DOCUMENTS, fields="text"),
    # The first asks a model for the probability of Yes, the second for a JSON object.
    "attribute": Contract(_PAIR),
    "attribute_json": Contract(_PAIR, "entailed"),
    "listwise": Contract("group query passages number?", fields="number passage"),
    # The reply is A or B; see fairqr.agents.ranking.reply_parser.
    "pairwise": Contract("group query first second"),
}


def check_contract(template: PromptTemplate) -> None:
    """Check that the code can use a prompt.

    Raises:
        PromptError: A placeholder, an output or a field is unknown or missing.
    """
    contract, name = CONTRACTS.get(template.id), template.name
    if contract is None:
        kinds = ", ".join(sorted(CONTRACTS))
        raise PromptError(f"The prompt {name} is of an unknown kind; choose one of {kinds}.")
    for what, names, used in (
        ("placeholder", contract.inputs, template.input_variables),
        ("output", contract.outputs, template.output),
        ("field of the item", contract.fields, template.item_variables),
    ):
        known = sorted(names.replace("?", "").split())
        if extra := sorted(set(used) - set(known)):
            raise PromptError(
                f"The prompt {name} has the {what} '{extra[0]}', which is unknown; it may "
                f"have {', '.join(known) or 'none'}."
            )
        if missing := sorted(set(names.split()) & set(known) - set(used)):
            raise PromptError(f"The prompt {name} lacks the {what} '{missing[0]}'; add it.")
