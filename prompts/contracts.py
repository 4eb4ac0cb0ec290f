"""What the code gives to each kind of prompt, and what it needs back."""

from __future__ import annotations

from dataclasses import dataclass

from fairqr.errors import PromptError
from fairqr.prompts.template import PromptTemplate

__all__ = ["CONTRACTS", "Contract", "check_contract"]


@dataclass(frozen=True, slots=True)
class Contract:
    """The interface between a kind of prompt and the code that uses it.

    Attributes:
        inputs: The input variables that a prompt may use.
        needed_inputs: Those that it must use.
        outputs: The fields that a reply may have.
        needed_outputs: Those that it must have.
    """

    inputs: frozenset[str]
    needed_inputs: frozenset[str]
    outputs: frozenset[str]
    needed_outputs: frozenset[str]


CONTRACTS = {
    "refine": Contract(
        inputs=frozenset({"query", "attribute", "group", "keywords"}),
        needed_inputs=frozenset({"query", "group"}),
        outputs=frozenset({"topic", "keywords", "drop", "reason"}),
        needed_outputs=frozenset({"keywords"}),
    ),
}


def check_contract(template: PromptTemplate) -> None:
    """Refuse a prompt that the code cannot use.

    Raises:
        PromptError: It has a placeholder or an output too many or too few.
    """
    contract = CONTRACTS.get(template.id)
    name = f"{template.id}/{template.version}"
    if contract is None:
        raise PromptError(
            f"The prompt {name} is of no known kind; the kinds are {', '.join(sorted(CONTRACTS))}."
        )
    inputs, outputs = set(template.input_variables), set(template.output)
    for what, extra, missing, allowed in (
        ("placeholder", inputs - contract.inputs, contract.needed_inputs - inputs, contract.inputs),
        ("output", outputs - contract.outputs, contract.needed_outputs - outputs, contract.outputs),
    ):
        if extra:
            raise PromptError(
                f"The prompt {name} has the {what} '{min(extra)}', which is not known here; "
                f"known are {', '.join(sorted(allowed))}."
            )
        if missing:
            raise PromptError(f"The prompt {name} lacks the {what} '{min(missing)}'; add it.")
