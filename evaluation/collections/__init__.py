"""Collections: documents with topics and judgements, and the targets that follow from them.

:func:`fairqr.evaluation.collections.finding.find_collection` finds one by name or path,
:func:`fairqr.evaluation.collections.labels.scan_corpus` and
:func:`fairqr.evaluation.collections.labels.scan_engine` read the groups of its documents,
:func:`fairqr.evaluation.collections.query_targets.query_targets` gives the target of each topic.
"""
