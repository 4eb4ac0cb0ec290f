"""The labels of TREC Fair 2021 and 2022: from the track's metadata to the groups of our schemas.

The rules are those of the track's published evaluation code (github.com/fair-trec,
trec2021-fair-public/Alignments.py and trec2022-fair-public/PageAlignments.py), with one difference:
a page of several genders, or in 2021 of several regions, is shared equally among them, where the
track's code counts it in full for each.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from fairqr.retrieval.schema import UNKNOWN, load_schema

__all__ = ["Year", "labels_of", "schema_of", "year_of"]

Year = Literal[2021, 2022]

OCEANIA = ("Australia and New Zealand", "Melanesia", "Micronesia", "Polynesia")
"""The sub-regions that the track takes together in 2022."""

# An erroneous gender in the metadata of 2021, which the track's code drops by name.
NO_GENDERS = ("Taira no Kiyomori", UNKNOWN)
_PREFIX = re.compile(r"(?:trans|cis)gender\s+((?:fe)?male)")
_RENAMED = {"qual_cat": "quality", "quality_score_disc": "quality", "pred_qual": "quality_score"}
_MAPPED = ("page_id", "gender", "geographic_locations")
_MAPPED_2022 = ("page_subcont_regions", "source_subcont_regions")


def schema_of(year: Year) -> Path:
    """Return the file with the attributes of a year, and the populations of the track."""
    return Path(__file__).parent / "schemas" / f"trec-fair-{year}.yaml"


@functools.cache
def _regions_of(year: Year) -> frozenset[str]:
    return frozenset(load_schema(schema_of(year)).attribute("geography").groups)


def year_of(metadata: Mapping[str, Any]) -> Year | None:
    """Return the year that a record of metadata is of."""
    if "page_subcont_regions" in metadata:
        return 2022
    return 2021 if "geographic_locations" in metadata else None


def labels_of(
    metadata: Mapping[str, Any], year: Year, unrecognised: dict[str, int]
) -> dict[str, Any]:
    """Return the fields of a document: ``gender``, ``geography``, in 2022 ``source_geography``.

    The rest of the metadata stays as it is, but the class of quality is called ``quality`` and its
    score ``quality_score`` in both years.

    Args:
        metadata: One record.
        year: Whose rules apply.
        unrecognised: Counts the regions that are none of the track's; they are left out.

    Raises:
        ValueError: A label has a shape that the track's files do not have.
    """
    fields: dict[str, Any] = {"gender": _genders(metadata.get("gender"))}
    if year == 2021:
        regions = _weighted(metadata.get("geographic_locations"))
        fields["geography"] = _regions(regions, year, unrecognised)
    else:
        subject = _weighted(metadata.get("page_subcont_regions"))
        source = _weighted(metadata.get("source_subcont_regions"))
        fields["geography"] = _regions(subject, year, unrecognised)
        fields["source_geography"] = _regions(source, year, unrecognised)
    used = _MAPPED if year == 2021 else (*_MAPPED, *_MAPPED_2022)
    own = ("id", "title", "text", "url", *fields)
    for name, value in metadata.items():
        if name not in used and (name := _RENAMED.get(name, name)) not in own:
            fields[name] = value
    return fields


def _genders(values: Any) -> list[str] | None:
    """Return the groups of a page's genders.

    As in the track, transgender and cisgender women are women and men likewise, and all other
    genders are one group.
    """
    names = [_PREFIX.sub(r"\1", name) for name in _weighted(values) if name not in NO_GENDERS]
    groups = [name if name in ("female", "male") else "non-binary" for name in names]
    return list(dict.fromkeys(groups)) or None


def _regions(
    weights: Mapping[str, float], year: Year, unrecognised: dict[str, int]
) -> dict[str, float] | None:
    """Return the weight of each region of a page, with Oceania taken together."""
    found: dict[str, float] = {}
    for region, weight in weights.items():
        if region == "UNK" or region == UNKNOWN:
            group = UNKNOWN
        else:
            group = "Oceania" if year == 2022 and region in OCEANIA else region
        if group != UNKNOWN and group not in _regions_of(year):
            unrecognised[region] = unrecognised.get(region, 0) + 1
            continue
        found[group] = found.get(group, 0.0) + weight
    return found or None


def _weighted(label: Any) -> dict[str, float]:
    """Return the names in a label with their weights: a list, a mapping, one name, or nothing."""
    if label is None or label == "" or label != label:
        return {}
    if isinstance(label, str):
        return {label: 1.0}
    if isinstance(label, Mapping):
        if not all(_is_weight(weight) for weight in label.values()):
            raise ValueError("a weight of its label is no number of 0 or more")
        return {str(name): float(weight) for name, weight in label.items()}
    if isinstance(label, Iterable):
        names = list(label)
        if all(isinstance(name, str) for name in names):
            return dict.fromkeys(names, 1.0)
    raise ValueError("a label is neither a list of names nor weights by name")


def _is_weight(weight: object) -> bool:
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    return is_number and 0 <= float(weight) < float("inf")  # type: ignore[arg-type]
