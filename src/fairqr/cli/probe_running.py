"""What ``fairqr probe pairwise`` and ``fairqr probe listwise`` share."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from fairqr.base.errors import InputError, first_problem, one_line
from fairqr.cli.common import print_json, recorded, run
from fairqr.cli.experiment_probes import run_plan
from fairqr.cli.probe_build import read_words
from fairqr.cli.progress import Progress

if TYPE_CHECKING:
    from fairqr.evaluation.probes.measured import MeasuredListwise, MeasuredPairwise
    from fairqr.evaluation.probes.specification import (
        ListwiseExperiment,
        PairwiseExperiment,
        ProbeSource,
    )
    from fairqr.evaluation.probes.store import ProbeRunManifest, ProbeStore

    E = TypeVar("E", ListwiseExperiment, PairwiseExperiment)

__all__ = ["experiment_of", "print_measured", "run_probe", "source_of"]


def source_of(
    collection: str,
    folder: Path | None,
    split: str | None,
    attribute: str | None,
    protected: str | None,
    words: str | None,
) -> ProbeSource:
    """Return the probe collection that options name.

    Args:
        collection: What it is built from.
        folder: Of one that was built; nothing else is said then.
        split: The judgements.
        attribute: Of the schema.
        protected: Groups; where None, ``female`` if there is such a group.
        words: What the sides are called.

    Raises:
        FairqrError: Too much or too little is said, or there is no such collection or attribute.
    """
    from fairqr.evaluation.collections.finding import find_collection
    from fairqr.evaluation.probes.specification import ProbeSource
    from fairqr.retrieval.sides import default_protected

    if folder is not None:
        said = {"attribute": attribute, "protected": protected, "words": words, "split": split}
        for name, value in said.items():
            if value is not None:
                raise InputError(f"The folder of --from says its --{name} itself; leave it out.")
        return ProbeSource(folder=str(folder))
    if attribute is None:
        raise InputError("Name an --attribute, such as gender, or a folder with --from.")
    if protected is None:
        schema = find_collection(collection, split).corpus.schema
        protected = default_protected(schema.attribute(attribute))
    if not protected.strip():
        raise InputError("The protected group has no name; write it as --protected female.")
    return ProbeSource(attribute=attribute, protected=protected, words=read_words(words))


_OPTIONS = {"askers": "asker", "models": "model", "rankers": "model", "windows": "window"}
"""The options that have other names than what they set."""


def experiment_of(of: type[E], /, **values: Any) -> E:
    """Return the experiment that options describe.

    Raises:
        InputError: A value is out of its range, or none of its choices.
    """
    try:
        return of.model_validate(values)
    except ValidationError as error:
        where, reason = first_problem(error)
        field = where.split(".")[0]
        at = f"--{_OPTIONS.get(field, field.replace('_', '-'))}: " if where else ""
        raise InputError(f"{at}{one_line(reason).rstrip('.')}.") from None


def run_probe(
    experiment: ListwiseExperiment | PairwiseExperiment,
    folder: Path | None,
    prompts: Path | None,
    base_url: str | None,
    timeout: float,
    *,
    concurrency: int,
    yes: bool,
) -> MeasuredListwise | MeasuredPairwise:
    """Run a probe, or go on with it, and measure what came of it.

    Args:
        experiment: What is asked.
        folder: Where it is kept; where None, in the user's cache, so that a second call asks
            nothing again.
        prompts: The user's own.
        base_url: Where an OpenAI-compatible server listens.
        timeout: Seconds that one request may take.
        concurrency: How many lists or pairs may be under way at the same time.
        yes: Go on though it is a large run.

    Raises:
        FairqrError: What it names is not there, the folder is of something else, a model fails, or
            the run is large and was not agreed to.
    """
    from fairqr.agents.cache import ReplyCache
    from fairqr.evaluation.probes.measures import measure_run
    from fairqr.evaluation.probes.plan import make_probe_plan
    from fairqr.evaluation.probes.store import ProbeStore
    from fairqr.evaluation.workers.choice import Workers
    from fairqr.prompts.library import PromptLibrary

    with Progress() as progress:
        plan = run(
            make_probe_plan(
                experiment,
                PromptLibrary(prompts),
                base_url=base_url,
                options={"timeout": timeout},
                preparing=progress.count,
            )
        )
    store = ProbeStore(folder or _in_cache(plan.manifest, ProbeStore))
    # Replies of runs that are nowhere else are the user's, as those of a search.
    replies = None if folder else ReplyCache()
    with recorded(command="probe"):
        run_plan(plan, store, workers=Workers(at_once=concurrency), yes=yes, replies=replies)
    return measure_run(store)


def _in_cache(manifest: ProbeRunManifest, store: type[ProbeStore]) -> Path:
    """Return where a run is kept that is to be kept nowhere: one place for each of its settings."""
    from fairqr.base.settings import cache_dir

    same = manifest.model_dump_json(include=set(store.compared))
    return cache_dir() / "probes" / hashlib.sha256(same.encode()).hexdigest()[:24]


def print_measured(measured: MeasuredListwise | MeasuredPairwise) -> None:
    """Print what was measured as one JSON object."""
    from pydantic_core import to_jsonable_python

    manifest = measured.manifest
    data = {
        "experiment": manifest.experiment.model_dump(mode="json"),
        "collections": [entry.model_dump(mode="json") for entry in manifest.collections],
        "prompts": [entry.model_dump(mode="json") for entry in manifest.prompts],
        "rows": to_jsonable_python(measured.rows),
        "differences": to_jsonable_python(getattr(measured, "differences", ())),
        "missing": measured.missing,
    }
    print_json(json.dumps(data, ensure_ascii=False))
