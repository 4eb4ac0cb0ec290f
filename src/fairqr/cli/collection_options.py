"""Options of commands that use a collection, and the probe that they describe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fairqr.base.errors import InputError, one_line

if TYPE_CHECKING:
    from fairqr.evaluation.probes.specification import ProbeExperiment
    from fairqr.retrieval.sources.documents import ProgressFunction

    E = TypeVar("E", bound=ProbeExperiment)

NOTABLES = "notables"

Attribute = Annotated[
    str | None, typer.Option(help="An attribute of the collection's schema, such as gender.")
]
Built = Annotated[
    Path | None,
    typer.Option(
        "--from", help="A folder that 'fairqr probe build' wrote, instead of a collection."
    ),
]
Collection = Annotated[
    str, typer.Option(help="A collection with judgements: its name or its folder.")
]
Protected = Annotated[
    str | None,
    typer.Option(
        help="The protected group: female, not Europe, or 'female vs male'. Defaults to female."
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, help="The seed of all random draws. [default: 0]")]
Split = Annotated[
    str | None,
    typer.Option(help="Which judgements to use, if there are several sets: train or eval."),
]
Words = Annotated[
    str | None,
    typer.Option(
        metavar="PROTECTED/UNPROTECTED", help="What to call the two groups, such as women/men."
    ),
]


def experiment_of(
    spec: type[E],
    values: Mapping[str, Any],
    settings: Iterable[str] | None,
    *,
    queries: int | None,
    seed: int | None,
    built: Path | None,
    attribute: str | None,
    protected: str | None,
    words: str | None = None,
) -> E:
    """Return the experiment that options describe.

    Args:
        spec: The class of the experiment.
        values: Values of the command; ``--set`` overrides them.
        settings: The values of ``--set``.
        queries: The option of this name, like the last four.
        seed: The seed of all draws.
        built: The folder of ``--from``, which has the collection and the sides.
        attribute: The attribute to probe.
        protected: The protected group.
        words: What to call the two groups.

    Raises:
        FairqrError: An option is missing or wrong, or there is no such collection or attribute.
    """
    from fairqr.cli.parameters import checked, read_parameters

    texts = [] if queries is None else [f"queries={queries}"]
    texts += [] if seed is None else [f"seed={seed}"]
    values = {**values, **read_parameters([spec], [*texts, *(settings or [])])}
    split = values.get("split")
    if built is None:
        source = source_of(values["collection"], split, attribute, protected, words)
        return checked(spec, {**values, "sources": (source,)})
    own = {"attribute": attribute, "protected": protected, "words": words, "split": split}
    for name, value in own.items():
        if value is not None:
            raise InputError(f"The folder of --from has its own {name}; leave out --{name}.")
    return checked(spec, {**values, "collection": None, "sources": ({"folder": str(built)},)})


def read_words(text: str | None) -> tuple[str, str] | None:
    """Read what the two groups are called, such as ``women/men``.

    Raises:
        InputError: These are not two words.
    """
    if text is None:
        return None
    one, slash, other = text.partition("/")
    if not slash or "/" in other:
        raise InputError(
            f"'{one_line(text, 100)}' is not a pair of words; write PROTECTED/UNPROTECTED, such as "
            "women/men."
        )
    return one, other


def source_of(
    collection: str,
    split: str | None,
    attribute: str | None = None,
    protected: str | None = None,
    words: str | None = None,
    *,
    progress: ProgressFunction | None = None,
) -> dict[str, Any]:
    """Return a probe collection to build from a collection, as an experiment file describes it.

    Raises:
        InputError: There is no attribute, or the group has no name.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.retrieval.fairness.protected import default_protected

    if not attribute:
        raise InputError("A probe needs an attribute; name one with --attribute, such as gender.")
    chosen = read_words(words)
    if protected is None:
        schema = find_collection(collection, split, progress=progress).corpus.schema
        protected = default_protected(schema.attribute(attribute))
    if not protected.strip():
        raise InputError("The protected group has no name; write it as --protected female.")
    return {"attribute": attribute, "protected": protected, "words": chosen}
