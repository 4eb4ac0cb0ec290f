"""What a probe, or a tuning, asks a model about: a collection, an attribute, and two groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from fairqr.base.errors import InputError, one_line
from fairqr.cli.common import NOTABLES
from fairqr.cli.parameters import checked
from fairqr.graph.documented import Documented

if TYPE_CHECKING:
    from fairqr.evaluation.experiments.measured import Measured
    from fairqr.evaluation.probes.specification import ProbeExperiment
    from fairqr.retrieval.sources.documents import ProgressFunction

    Experiment = TypeVar("Experiment", bound=ProbeExperiment)


class Probed(Documented):
    """A probe collection: one that is built from a collection, or a folder of one.

    Attributes:
        attribute: An attribute of the collection's schema, such as gender.
        protected: The protected group: female, not Europe, or 'female vs male'. Defaults to female.
        words: What to call the two groups, PROTECTED/UNPROTECTED, such as women/men.
        collection: A collection with judgements: its name or its folder.
        from_: A folder that 'fairqr probe build' wrote, instead of a collection.
    """

    attribute: str | None = None
    protected: str | None = None
    words: str | None = None
    collection: str = NOTABLES
    from_: str | None = None

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
            source = self.source(name, split)
            return checked(spec, {**values, "collection": name, "sources": (source,)})
        own = {**self.model_dump(include={"attribute", "protected", "words"}), "split": split}
        for option, value in own.items():
            if value is not None:
                raise InputError(
                    f"The folder of --from has its own {option}; leave out --{option}."
                )
        return checked(spec, {**values, "collection": None, "sources": ({"folder": self.from_},)})

    def source(
        self, collection: str, split: str | None, *, progress: ProgressFunction | None = None
    ) -> dict[str, Any]:
        """Return the probe collection to build, as an experiment file describes it.

        Raises:
            InputError: There is no attribute, the group has no name, or there are not two words.
        """
        from fairqr.evaluation.collections.finding import find_collection
        from fairqr.retrieval.fairness.protected import default_protected

        if not self.attribute:
            raise InputError(
                "A probe needs an attribute; name one with --attribute, such as gender."
            )
        words = None if self.words is None else tuple(self.words.split("/"))
        if words is not None and len(words) != 2:
            raise InputError(
                f"'{one_line(self.words, 100)}' is not a pair of words; write "
                "PROTECTED/UNPROTECTED, such as women/men."
            )
        protected = self.protected
        if protected is None:
            schema = find_collection(collection, split, progress=progress).corpus.schema
            protected = default_protected(schema.attribute(self.attribute))
        if not protected.strip():
            raise InputError("The protected group has no name; write it as --protected female.")
        return {"attribute": self.attribute, "protected": protected, "words": words}


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
