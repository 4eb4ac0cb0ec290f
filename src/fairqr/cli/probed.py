"""What a probe, or a tuning, asks a model about: a collection, an attribute, and two groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, Field

from fairqr.base.errors import InputError, one_line
from fairqr.cli.common import NOTABLES
from fairqr.cli.parameters import checked

if TYPE_CHECKING:
    from fairqr.evaluation.experiments.measured import Measured
    from fairqr.evaluation.probes.specification import ProbeExperiment
    from fairqr.retrieval.sources.documents import ProgressFunction

    Experiment = TypeVar("Experiment", bound=ProbeExperiment)


class Probed(BaseModel):
    """A probe collection: one that is built from a collection, or a folder of one."""

    attribute: str | None = Field(
        None, description="An attribute of the collection's schema, such as gender."
    )
    protected: str | None = Field(
        None,
        description="The protected group: female, not Europe, or 'female vs male'. Defaults to "
        "female.",
    )
    words: str | None = Field(
        None, description="What to call the two groups, PROTECTED/UNPROTECTED, such as women/men."
    )
    collection: str = Field(
        NOTABLES, description="A collection with judgements: its name or its folder."
    )
    from_: str | None = Field(
        None, description="A folder that 'fairqr probe build' wrote, instead of a collection."
    )

    def experiment(self, spec: type[Experiment], values: Mapping[str, Any]) -> Experiment:
        """Return an experiment on this collection.

        Args:
            spec: The class of the experiment.
            values: All other values.

        Raises:
            FairqrError: An option is missing or wrong, or there is no such collection or attribute.
        """
        name, split = values.get("collection", self.collection), values.get("split")
        if self.from_ is None:
            source = probe_source(name, split, self.attribute, self.protected, self.words)
            return checked(spec, {**values, "collection": name, "sources": (source,)})
        own = {**self.model_dump(include={"attribute", "protected", "words"}), "split": split}
        for option, value in own.items():
            if value is not None:
                raise InputError(
                    f"The folder of --from has its own {option}; leave out --{option}."
                )
        return checked(spec, {**values, "collection": None, "sources": ({"folder": self.from_},)})


class ProbeRun(BaseModel):
    """How a probe runs; none of it changes the results."""

    prompts: Path | None = Field(
        None, description="A folder with your own prompts. [default: FAIRQR_PROMPTS_DIR]"
    )
    base_url: str | None = Field(None, description="The URL of an OpenAI-compatible server.")
    timeout: float = Field(
        60.0, gt=0, description="How many seconds one request to a model may take."
    )
    concurrency: int = Field(
        4,
        ge=1,
        le=256,
        description="How many pairs or lists run at a time; use 1 to measure times.",
    )
    output: Path | None = Field(
        None,
        description="The folder of the run; an interrupted run resumes. [default: in the cache]",
    )
    yes: bool = Field(
        False,
        description="Run even if the model may be asked more than 2,000 times or read more than "
        "1,000,000 tokens.",
    )


def probe_source(
    collection: str,
    split: str | None,
    attribute: str | None,
    protected: str | None,
    words: str | None,
    *,
    progress: ProgressFunction | None = None,
) -> dict[str, Any]:
    """Return a probe collection to build from a collection, as an experiment file describes it.

    Raises:
        InputError: There is no attribute, the group has no name, or there are not two words.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.retrieval.fairness.protected import default_protected

    if not attribute:
        raise InputError("A probe needs an attribute; name one with --attribute, such as gender.")
    chosen = None if words is None else tuple(words.split("/"))
    if chosen is not None and len(chosen) != 2:
        raise InputError(
            f"'{one_line(words or '', 100)}' is not a pair of words; write PROTECTED/UNPROTECTED, "
            "such as women/men."
        )
    if protected is None:
        schema = find_collection(collection, split, progress=progress).corpus.schema
        protected = default_protected(schema.attribute(attribute))
    if not protected.strip():
        raise InputError("The protected group has no name; write it as --protected female.")
    return {"attribute": attribute, "protected": protected, "words": chosen}


def as_data(measured: Measured, parts: Iterable[str]) -> dict[str, Any]:
    """Return what was measured for ``--json``.

    Args:
        measured: The results.
        parts: The lists of the manifest to show.
    """
    from fairqr.evaluation.reports.tables import records_of

    manifest: Any = measured.manifest  # type: ignore[attr-defined]
    return {
        "experiment": manifest.experiment.model_dump(mode="json"),
        **{it: [each.model_dump(mode="json") for each in getattr(manifest, it)] for it in parts},
        **{name: records_of(frame) for name, frame in measured.frames.items()},
        "missing": measured.missing,  # type: ignore[attr-defined]
    }
