"""What an audit is given, and all that is opened and checked before anything is asked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from fairqr.base.errors import InputError, TargetError, one_line
from fairqr.base.files import without_home
from fairqr.base.secrets import WITHHELD, without_secrets
from fairqr.evaluation.audit.bundle import AuditManifest, Relevance
from fairqr.evaluation.audit.dimensions import dimensions_to_measure
from fairqr.evaluation.audit.lists import NO_RECORDS, UserRecords
from fairqr.evaluation.audit.observing import Observer, listed_groups
from fairqr.evaluation.audit.pairs import Pairs, ScoredPairs, open_pairs
from fairqr.evaluation.audit.queries import Queries
from fairqr.evaluation.audit.report import LAYOUTS
from fairqr.evaluation.audit.specification import AuditSpec
from fairqr.evaluation.collections.query_targets import check_target
from fairqr.evaluation.experiments.folder import versions
from fairqr.evaluation.experiments.progress import StageWatcher
from fairqr.evaluation.qrels import Qrels
from fairqr.evaluation.user_clicks import ClickFigures
from fairqr.retrieval.encoders.minilm import MiniLmEncoder
from fairqr.retrieval.engines.engine import EngineInfo, SearchEngine, require
from fairqr.retrieval.engines.hybrid.texts import TextRelevance, open_texts
from fairqr.retrieval.engines.limits import at_rate
from fairqr.retrieval.sources.corpus import stem_of
from fairqr.retrieval.sources.documents import in_known_forms
from fairqr.retrieval.sources.schema import Attribute
from fairqr.retrieval.sources.source import Source

DIGITS = re.compile("[0-9a-f]{8}")
"""What tells indexes apart that are made of files with one name."""


@dataclass(frozen=True)
class AuditInputs:
    """What an audit measures, and what it is given beside the engine.

    Attributes:
        spec: What to measure.
        queries: What to ask.
        qrels: Judgements by query id. Without them relevance is estimated from texts, where that
            is possible.
        pairs: Documents in several versions.
        users: What a proxy saw of these searches, and what clicks say, of which the spec has the
            discount.
    """

    spec: AuditSpec
    queries: Queries
    qrels: Qrels | None = None
    pairs: Pairs | None = None
    users: UserRecords = NO_RECORDS


@dataclass(frozen=True)
class AuditOptions:
    """How an audit is carried out; no figure depends on it.

    Attributes:
        concurrency: How many queries may be under way.
        rate: The most requests a second; no limit by default.
        redact: Put pseudonyms in place of queries.
        layout: The layout of the report.
        withhold_place: Name the engine alone, not where it is or how its source describes it.
        command: How the audit was started, for the record.
        watcher: Told how far it is.
    """

    concurrency: int
    rate: float | None = None
    redact: bool = False
    layout: str = LAYOUTS[0]
    withhold_place: bool = False
    command: Sequence[str] = ()
    watcher: StageWatcher = field(default_factory=StageWatcher)


@dataclass(frozen=True)
class PreparedAudit:
    """An audit that is ready to ask.

    Attributes:
        engine: The audited engine, at the rate that is allowed.
        observer: Asks it.
        pairs: Scores documents in several versions; None if there are none.
        manifest: What the audit is made with.
    """

    engine: SearchEngine
    observer: Observer
    pairs: ScoredPairs | None
    manifest: AuditManifest


async def prepare(
    engine: SearchEngine, inputs: AuditInputs, options: AuditOptions
) -> PreparedAudit:
    """Open and check all that an audit needs.

    Raises:
        FairqrError: The audit cannot be carried out; the message says what to do.
    """
    spec = inputs.spec
    attributes = _attributes(spec, engine)
    qrels = _judgements_of(inputs.queries, inputs.qrels)
    corpus_shares = await _corpus_shares(spec, engine, attributes)
    slow = at_rate(engine, options.rate)
    pairs = await _opened_pairs(spec, inputs.pairs, slow)
    texts, relevance = await _opened_texts(inputs, qrels, slow, options.watcher)
    groups = listed_groups(attributes.values())
    is_wide = texts is not None and spec.widen
    observer = Observer(
        slow,
        tuple(attributes.values()),
        spec.depth,
        qrels=qrels,
        texts=texts,
        widened=tuple(group for group in groups if is_wide and group in engine.filterable),
        deepens=spec.widen,
    )
    info = await engine.info()
    server = {"server": info.server} if info.server else {}
    manifest = AuditManifest(
        versions=versions() | server,
        spec=spec.model_dump(mode="json"),
        source={} if options.withhold_place else _source_of(engine),
        inputs=_hashes(qrels, inputs.pairs, inputs.users.clicks),
        queries=inputs.queries.fingerprint,
        command=tuple(map(without_home, without_secrets(tuple(options.command)))),
        engine={
            "name": _readable_name(info),
            "engine": info.engine,
            "location": WITHHELD if options.withhold_place else without_home(info.location),
            "retriever": engine.retriever,
            # An index on a server may grow while it is audited.
            "state": info.fingerprint if engine.in_process else "",
        },
        documents=info.documents,
        attributes=attributes,
        relevance=relevance,
        encoder=MiniLmEncoder.name if texts else "",
        pairs_by=pairs.name if pairs else "",
        corpus_shares=corpus_shares,
    )
    return PreparedAudit(slow, observer, pairs, manifest)


def _readable_name(info: EngineInfo) -> str:
    """Return the name of what is audited; of a file that was searched, that of the file.

    The index that is made of a file also has a few digits in its name, to tell files apart.
    """
    file_name = stem_of(Path(info.source))
    name, _, digits = info.name.rpartition("-")
    return name if name == file_name and DIGITS.fullmatch(digits) else info.name


def _attributes(spec: AuditSpec, engine: SearchEngine) -> dict[str, Attribute]:
    """Return the attributes that are measured, once the spec is known to fit them."""
    if not engine.schema.attributes:
        raise InputError(
            f"'{engine.name}' has no attributes to audit; describe them in its schema, or in the "
            "source."
        )
    dimensions = dimensions_to_measure(engine.schema, spec)
    check_target(spec.target, dimensions)
    groups: list[str] = []
    attributes: dict[str, Attribute] = {}
    for dimension in dimensions:
        attributes |= {factor.name: factor for factor in dimension.factors}
        if not dimension.is_open:
            groups += [f"{dimension.name}={group}" for group in dimension.groups]
    for reference in map("=".join, spec.reference.items()):
        if reference not in groups:
            raise InputError(
                f"The reference '{one_line(reference)}' is no group of this audit; choose among "
                f"{', '.join(groups[:20])}."
            )
    return attributes


def _judgements_of(queries: Queries, qrels: Qrels | None) -> Qrels | None:
    """Return judgements with the ids of the queries as the queries write them.

    Raises:
        InputError: None of the queries is judged.
    """
    if qrels is None:
        return None
    ids = [query.id for query in queries.queries]
    judged = in_known_forms(qrels, {*ids})
    if not any(id_ in judged for id_ in ids):
        raise InputError(
            f"The judgements have none of the queries, such as '{one_line(ids[0], 80)}'; give "
            "the queries the ids that the judgements use, in a column 'id'."
        )
    return judged


async def _corpus_shares(
    spec: AuditSpec, engine: SearchEngine, attributes: Mapping[str, Attribute]
) -> dict[str, tuple[float, ...]]:
    """Return the shares of groups in the whole corpus, if the target needs them.

    Raises:
        TargetError: The engine cannot count them.
    """
    if not spec.target.parts.get("corpus"):
        return {}
    require(engine, "corpus_shares", "A target with the part 'corpus'")
    counted = await engine.corpus_shares()
    shares = {name: tuple(counted[name].tolist()) for name in attributes if name in counted}
    lacking = attributes.keys() - shares.keys() - spec.target.shares.keys()
    if lacking:
        raise TargetError(
            f"'{engine.name}' cannot count all documents by '{min(lacking)}'; choose a target "
            "without the part 'corpus'."
        )
    return shares


async def _opened_pairs(
    spec: AuditSpec, pairs: Pairs | None, engine: SearchEngine
) -> ScoredPairs | None:
    """Open what scores documents in several versions, if there are any."""
    if pairs is not None:
        return await open_pairs(spec.pairs_by, pairs, engine)
    if "pairs_by" in spec.model_fields_set:
        raise InputError("'pairs_by' says what scores pairs; name their file with --pairs, too.")
    return None


async def _opened_texts(
    inputs: AuditInputs, qrels: Qrels | None, engine: SearchEngine, watcher: StageWatcher
) -> tuple[TextRelevance | None, Relevance]:
    """Open what estimates relevance, if it is needed and there; return what says what is relevant.

    Raises:
        InputError: Relevance is to be estimated beside judgements, and cannot be.
        TargetError: The target that was asked for needs relevance.
    """
    spec = inputs.spec
    if qrels is not None and spec.judge != "estimate":
        return None, "judged"
    by_id = {query.id: query.text for query in inputs.queries.queries}
    texts, why_not = await open_texts(engine, by_id, watcher.count("encoding texts"))
    if texts:
        return texts, "estimated"
    if qrels:
        raise InputError(f"{why_not} Or leave out --set judge=estimate.")
    if spec.target.parts.get("relevance"):
        # A target that was asked for must not need relevance.
        if "target" in spec.model_fields_set:
            raise TargetError(
                f"{why_not} Or choose a target that does not need them, such as uniform:1."
            )
        watcher.note(
            f"{why_not} Until then no gaps are measured, unless a target such as uniform:1 "
            "says what each group should get."
        )
    return None, "unknown"


def _source_of(engine: SearchEngine) -> dict[str, JsonValue]:
    """Return how its source describes an engine, without secrets."""
    source = getattr(engine, "source", None)
    if not isinstance(source, Source):
        return {}
    described: dict[str, JsonValue] = without_secrets(source.model_dump(mode="json"))
    return described


def _hashes(
    qrels: Qrels | None, pairs: Pairs | None, clicks: ClickFigures | None
) -> dict[str, str]:
    """Return a hash of all of each input, so that other queries do not change it."""
    hashes = {}
    if qrels is not None:
        hashes["judgements"] = _hash(json.dumps(qrels, sort_keys=True, default=dict))
    if pairs is not None:
        hashes["pairs"] = _hash(json.dumps(pairs, sort_keys=True, default=dict))
    if clicks is not None:
        hashes["clicks"] = _hash(clicks.model_dump_json())
    return hashes


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
