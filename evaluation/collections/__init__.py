"""Collections: documents with topics and judgements, and the targets that follow from them.

:func:`find_collection` finds one by name or path, :func:`scan_corpus` and
:func:`labels_from_engine` read the groups of its documents, :func:`query_targets` gives the target
of each topic.
"""

from fairqr.evaluation.collections.collection import About, Collection, Topic, load_collection
from fairqr.evaluation.collections.finding import (
    LOADERS,
    find_collection,
    find_loader,
    import_collection,
    list_collections,
)
from fairqr.evaluation.collections.labels import Labels, labels_from_engine, scan_corpus
from fairqr.evaluation.collections.query_targets import (
    QueryTargets,
    as_target,
    query_targets,
    work_weights,
)

__all__ = [
    "LOADERS",
    "About",
    "Collection",
    "Labels",
    "QueryTargets",
    "Topic",
    "as_target",
    "find_collection",
    "find_loader",
    "import_collection",
    "labels_from_engine",
    "list_collections",
    "load_collection",
    "query_targets",
    "scan_corpus",
    "work_weights",
]
