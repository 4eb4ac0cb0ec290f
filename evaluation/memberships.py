"""Which groups the documents of runs and judgements belong to, from a file or from an engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fairqr.base.errors import TargetError, UnsupportedError
from fairqr.evaluation.collections.labels import (
    Scan,
    UnknownPolicy,
    labels_from_engine,
    schema_with_unknown,
)
from fairqr.evaluation.collections.targets import with_unknown
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.engines.engine import SearchEngine
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.schema import Schema

__all__ = ["Groups", "scan_engine"]


async def scan_engine(engine: SearchEngine, ids: Collection[str]) -> Scan:
    """Return what an engine knows of the groups of these documents, and of all its documents.

    It is to an engine what :func:`fairqr.evaluation.collections.labels.scan_corpus` is to a file.
    Where the engine cannot count the documents of each group, the shares are left out.

    Raises:
        IndexUnavailableError: The engine cannot be reached.
        UnsupportedError: It cannot look documents up, or does not know how many it holds.
    """
    labels = await labels_from_engine(engine, ids)
    documents = (await engine.info()).documents
    if documents is None:
        raise UnsupportedError(
            f"'{engine.name}' does not say how many documents it holds, which an evaluation needs; "
            "name the documents with --documents."
        )
    counted = await engine.corpus_shares() if "corpus_shares" in engine.capabilities else {}
    shares = {
        name: with_unknown(known[: len(engine.schema.attribute(name).groups)])
        for name, known in counted.items()
    }
    return Scan(labels, documents, shares)


class Groups:
    """The groups of the documents that an evaluation meets.

    Attributes:
        scan: What was read of a corpus or asked of an engine.
    """

    def __init__(self, scan: Scan) -> None:
        self.scan = scan
        self._dimensions: dict[tuple[str, UnknownPolicy | None], Dimension] = {}

    @property
    def schema(self) -> Schema:
        """The attributes and their groups."""
        return self.scan.labels.schema

    def __contains__(self, id_: str) -> bool:
        return id_ in self.scan.labels

    def policies(self) -> dict[str, str]:
        """Return by attribute what the schema does with the unknown, ``exclude`` or ``group``."""
        return {name: attribute.unknown for name, attribute in self.schema.attributes.items()}

    def dimension(self, name: str, unknown: UnknownPolicy | None = None) -> Dimension:
        """Return a dimension.

        Args:
            name: An attribute, or several as ``gender×continent``.
            unknown: ``exclude`` or ``group``, in place of the schema's policy for unknown labels.

        Raises:
            UnknownAttributeError: The schema lacks an attribute.
        """
        if (name, unknown) not in self._dimensions:
            schema = schema_with_unknown(self.schema, unknown) if unknown else self.schema
            self._dimensions[name, unknown] = Dimension.named(schema, name)
        return self._dimensions[name, unknown]

    def memberships(self, dimension: Dimension, ids: Sequence[str]) -> FloatArray:
        """Return the share of each group in these documents, shape (len(ids), G).

        A row is all zeros for an id that the corpus lacks, and for a document without a label where
        the unknown are excluded.
        """
        return self.scan.labels.in_dimension(dimension, ids)

    def corpus_shares(self, dimension: Dimension) -> FloatArray:
        """Return the mean membership over the whole corpus, shape (G,).

        Raises:
            TargetError: They are not known: no scan keeps those of a product of attributes, and
                some engines cannot count their documents by group.
        """
        if dimension.name not in self.scan.shares:
            raise TargetError(
                f"The target part 'corpus' is not known for {dimension.name}; choose another part."
            )
        shares = np.asarray(self.scan.shares[dimension.name], dtype=np.float64)
        return shares[: len(dimension.groups)]
