"""Writes docs/parameters.md from the descriptions of the parameters: ``make parameters``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from fairqr.cli.parameters import parameters_of
from fairqr.cli.running import AnswerRunSettings, RunSettings, SearchRunSettings
from fairqr.evaluation.experiments.kinds import KINDS
from fairqr.graph.answer.context import AnswerSettings
from fairqr.graph.probe.context import ProbeSettings
from fairqr.graph.search.context import METHODS, Context
from fairqr.retrieval.rerankers.registry import RERANKERS
from fairqr.retrieval.retriever_parameters import Hybrid, Rm3

__all__ = ["PAGE", "page"]

PAGE = Path(__file__).parents[2] / "docs" / "parameters.md"

HEAD = """# Parameters

What a run does is said by its parameters, with the same names, meanings and defaults everywhere:

| | |
|---|---|
| the command | `--set budget.tokens=1000`; the common ones have an option, such as `--attribute` |
| Python | `search.search("physicist", k=10, budget={"tokens": 1000})` |
| the service | `{"query": "physicist", "k": 10, "budget": {"tokens": 1000}}` |

On the command line, commas separate several values (`--set attributes=gender,continent`), and
`NAME` stands for a name that you choose. Python's short forms and the service take the parameters
of an answer or a probe without `answer.` or `probe.`. `fairqr search --set help` prints the tables
below, and `fairqr search --method help` explains the methods. `make parameters` writes this page.
"""

EXPERIMENTS = """## Experiments

These values stand in the file of an experiment. `fairqr experiment run` changes them by `--set`;
`fairqr probe pairwise`, `fairqr probe listwise` and `fairqr tune` take those of `llm_pairwise`,
`llm_listwise` and `lora`.
"""


def page() -> str:
    """Return the page."""
    names = ", ".join(f"`{name}`" for name in METHODS)
    sections = [
        ("A search", f"The methods are {names}.", [Context]),
        ("An answer", "An answer also has the parameters of a search.", [AnswerSettings]),
        ("A probe", "A probe also has the parameters of a search.", [ProbeSettings]),
    ]
    prefixes = {"An answer": "answer.", "A probe": "probe."}
    parts = [HEAD]
    for title, lead, models in sections:
        parts += [f"## {title}\n", f"{lead}\n", _table(models, prefixes.get(title, ""))]
    parts += ["## Options of the final step\n", "Set them as `options.NAME`.\n"]
    for name, entry in RERANKERS.items():
        parts += [f"`{name}`: {entry.about}.\n", _table([entry.options_model()], "options.")]
    parts += ["## The retriever rm3\n", "Set them as `--retriever rm3:documents=20,terms=30`.\n"]
    parts += [_table([Rm3], "")]
    parts += ["## The retriever hybrid\n"]
    parts += ["Set them as `--retriever hybrid:feedback=20`, or `hybrid:ENCODER,feedback=20`.\n"]
    parts += [_table([Hybrid], "")]
    parts += ["## The command alone\n", _table([RunSettings], "")]
    own = [SearchRunSettings, AnswerRunSettings]
    for command, model in zip(("fairqr search", "fairqr answer"), own, strict=True):
        parts += [f"Only `{command}`:\n", _table([model], "", without=RunSettings)]
    parts.append(EXPERIMENTS)
    for kind in KINDS.values():
        parts += [f"### `{kind.name}`\n", _table([kind.spec], "")]
    return "\n".join(parts)


def _table(
    models: Iterable[type[BaseModel]], prefix: str, *, without: type[BaseModel] | None = None
) -> str:
    left_out = without.model_fields if without else {}
    rows = [
        f"| `{parameter.label}` | {parameter.help.replace('|', chr(92) + '|')} |"
        for parameter in parameters_of(models, prefix)
        if parameter.name.removeprefix(prefix) not in left_out
    ]
    return "\n".join(["| | |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
