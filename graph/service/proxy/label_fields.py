"""The fields that are asked for with each window, from which labels and ids are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fairqr.graph.service.proxy.queries import as_list


@dataclass(frozen=True, slots=True)
class LabelFields:
    """What is asked for with each window, so that labels are read as searches and audits read them.

    Attributes:
        columns: Entries of ``docvalue_fields``.
        others: Entries of ``fields``, for what has no columns.
    """

    columns: tuple[dict[str, str], ...] = ()
    others: tuple[dict[str, str], ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names of all fields."""
        entries = (*self.columns, *self.others)
        return frozenset(entry["field"] for entry in entries)

    def missing_from(self, body: Mapping[str, Any], parameters: Mapping[str, str]) -> LabelFields:
        """Return the fields that a client does not ask for itself.

        Args:
            body: The client's body.
            parameters: The parameters in the address.
        """
        in_address = parameters.get("docvalue_fields", "").split(",")
        entries = [
            *as_list(body.get("docvalue_fields")),
            *as_list(body.get("fields")),
            *collapsed_in(body),
            *filter(None, in_address),
        ]
        patterns = [_pattern_of(entry) for entry in entries]

        def is_missing(entry: dict[str, str]) -> bool:
            return not any(fnmatchcase(entry["field"], pattern) for pattern in patterns)

        columns = filter(is_missing, self.columns)
        others = filter(is_missing, self.others)
        return LabelFields(tuple(columns), tuple(others))

    def beside(self, body: Mapping[str, Any], parameters: Mapping[str, str]) -> dict[str, Any]:
        """Return the options by which a search returns these fields beside the client's own.

        Args:
            body: The client's body.
            parameters: The parameters in the address.
        """
        options: dict[str, Any] = {}
        if self.columns:
            columns = [*as_list(body.get("docvalue_fields")), *self.columns]
            if "docvalue_fields" not in body.keys() | parameters.keys():
                # Without it, Elasticsearch 8.12 fails where there are other columns.
                columns = [*collapsed_in(body), *columns]
            options["docvalue_fields"] = columns
        if self.others:
            options["fields"] = [*as_list(body.get("fields")), *self.others]
        return options


NO_FIELDS = LabelFields()


def collapsed_in(body: Mapping[str, Any]) -> list[str]:
    """Return the field by which hits are collapsed, which they have as well."""
    retriever = body.get("retriever") or {}
    collapses = [body.get("collapse"), retriever.get("standard", {}).get("collapse")]
    return [str(collapse["field"]) for collapse in collapses if collapse and "field" in collapse]


def _pattern_of(entry: Any) -> str:
    """Return the field that an entry of a body asks for; it may have ``*`` for any characters."""
    return str(entry["field"]) if isinstance(entry, Mapping) else str(entry)
