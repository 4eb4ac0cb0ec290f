"""Which groups the documents of runs and judgements belong to, from a file or from an index."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from fairqr.errors import TargetError
from fairqr.evaluation.collections.labels import (
    Labels,
    Scan,
    UnknownPolicy,
    labels_from_index,
    schema_with_unknown,
)
from fairqr.evaluation.collections.targets import with_unknown
from fairqr.retrieval.dimension import Dimension
from fairqr.retrieval.exposure import FloatArray
from fairqr.retrieval.index import Index
from fairqr.retrieval.schema import Schema

__all__ = ["Groups", "scan_index"]

AT_ONCE = 1_000


async def scan_index(index: Index, ids: Collection[str]) -> Scan:
    """Return what an index knows of the groups of these documents, and of all its documents.

    It is to an index what :func:`fairqr.evaluation.collections.labels.scan_corpus` is to a file.

    Raises:
        IndexUnavailableError: The index cannot be reached.
    """
    labels = await labels_from_index(index, ids)
    bare = [id_ for id_, row in labels.rows.items() if _is_unknown(labels, row)]
    there: set[str] = set()
    for start in range(0, len(bare), AT_ONCE):
        # Memberships alone do not tell a document without a label from one that is not there.
        found = await index.documents(bare[start : start + AT_ONCE])
        there.update(document.id for document in found)
    gone = set(bare) - there
    rows = {id_: row for id_, row in labels.rows.items() if id_ not in gone}
    shares = {
        name: with_unknown((await index.corpus_shares(name))[: len(attribute.groups)])
        for name, attribute in index.schema.attributes.items()
    }
    documents = (await index.info()).documents
    return Scan(Labels(labels.schema, rows, labels.arrays), documents, shares)


def _is_unknown(labels: Labels, row: int) -> bool:
    return not any(array[row, :-1].any() for array in labels.arrays.values())


class Groups:
    """The groups of the documents that an evaluation meets.

    Attributes:
        scan: What was read of a corpus or asked of an index.
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
            TargetError: For a product of attributes, of which a scan keeps no shares.
        """
        if len(dimension.factors) > 1:
            raise TargetError(
                f"The target part 'corpus' is not known for {dimension.name}; choose another part."
            )
        shares = np.asarray(self.scan.shares[dimension.name], dtype=np.float64)
        return shares[: len(dimension.groups)]
