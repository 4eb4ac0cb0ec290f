"""What a server demands of a request: that a parameter has a value which we do not send."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from fairqr.agents.models.complaints import FEATURES, UNKNOWN_FEATURE, Complaint
from fairqr.base.request_members import OURS

LONGEST = 2000
"""How many characters of a reason are read."""

MOST_DEMANDS = 4
"""How many demands of a server one question meets."""

# Parts of a message, and what we never send.
_OF_NO_REQUEST = OURS | {"api_key", "content", "input", "role", "roles", "system", "tools"}

# Where a server says that a parameter is; not a part of its name.
_PLACES = ("body", "extra_body", "parameter", "parameters", "params", "request", "request_body")

_KINDS = r"argument|field|flag|option|parameter|property|setting|value"
_DUTIES = (
    r"must|should|shall|ha(?:s|ve)\sto|needs?\sto|only|restricted|limited|fixed|required|expected"
)
_FILLERS = (
    r"accepts?|allows?|as|at|be|can|equals?|explicitly|input|is|it|its|may|set|supports?|takes?|"
    r"the|to"
)
_REQUESTS = r"expects?|needs?|only|pass|requires?|set|specify|use"
_WORDS = rf"{_KINDS}|{_DUTIES}|{_FILLERS}"

_NAME = r"""
    (?<![\w.\]/-])
    (?P<mark>[`'"]?) (?P<name> [a-z]\w* (?: \. [a-z]\w* )* ) (?P=mark)
    (?![\w-])
"""
_VALUE = r"""
    (?P<value> (?:true|false)\b | -?\d+(?:\.\d+)?\b | (?P<quote>[`'"]) [^\s`'"]+ (?P=quote) )
"""
_LINK = rf"(?P<link> (?: [\s:,=] | \b(?:{_WORDS})\b )*+ )"
# No bound or list of values follows, such as "5 or less", "1, 2 or 3" and "5 tokens".
_ALONE = r"""(?!
    \s*[-–|/%<>]
    | \s*,?\s*(?:or|to)\b
    | \s*(?:,|,?\s*and)\s*(?:[`'"\d]|true|false)
    | \s+and\s+(?:above|below|fewer|greater|higher|less|lower|more|up)\b
    | \s+(?:tokens?|characters?)\b
)"""

_FLAGS = re.IGNORECASE | re.VERBOSE
_DUTY = re.compile(rf"\b(?:{_DUTIES})\b", _FLAGS)
_SET = re.compile(rf"\b(?:set|{_KINDS})\b", _FLAGS)
_NO_NAME = re.compile(rf"{_WORDS}|that|this|which|you", _FLAGS)
_TOLD = re.compile(
    rf"(?P<verb> \b(?:{_REQUESTS})\s+(?:the\s+)? )? {_NAME}{_LINK}{_VALUE}{_ALONE}", _FLAGS
)
_ONLY = re.compile(
    rf"\bonly\s+(?:the\s+value\s+)? {_VALUE} \s+(?:is|are)\s+\w+"
    rf"(?: \s+(?:as|by|for|in|of|the|{_KINDS}) )* (?:\s+{_NAME})?",
    _FLAGS,
)
_UNNAMED = re.compile(rf"(?: ^ | [.;:!]\s ) {_LINK}{_VALUE}{_ALONE}", _FLAGS)
_MARKED = re.compile(_NAME, _FLAGS)
_WANTED = re.compile(r"\s+(?:is|was)\s+(?:mandatory|missing|required)\b", _FLAGS)
_WANTS = re.compile(
    rf"\b(?: {_DUTIES} | mandatory | missing | required? | requires? | provide | set | specify )\b",
    _FLAGS,
)


class Demand(NamedTuple):
    """What a server says that a parameter must be.

    Attributes:
        path: The name of the parameter, and of those inside it.
        value: Its value, as JSON data.
    """

    path: tuple[str, ...]
    value: Any

    @property
    def members(self) -> dict[str, Any]:
        """The members of a request that meet it."""
        value = self.value
        for name in reversed(self.path):
            value = {name: value}
        return dict(value)

    def is_stated_in(self, members: Mapping[str, Any]) -> bool:
        """Return whether members of a request state a value for the parameter."""
        inner: Any = members
        for name in self.path:
            if not isinstance(inner, Mapping):
                return True
            if name not in inner:
                return False
            inner = inner[name]
        return True


def demand_in(complaint: Complaint) -> Demand | None:
    """Return what a refused request must state, if the refusal names a parameter and its value.

    Read are a name, then only words of duty, then a value of JSON, as in ``enable_thinking must be
    set to false`` and ``body.store: Input should be False``; or "only", a value and a name. A
    sentence without a name is about the parameter that the error states as such.
    """
    if complaint.status not in UNKNOWN_FEATURE or complaint.is_about_content:
        return None
    return next(_demands(complaint), None)


def parameter_in(complaint: Complaint) -> str | None:
    """Return the name of the parameter that a refusal wants, or wants to be another; or None."""
    stated = _stated_path(complaint)
    reason = complaint.reason[:LONGEST]
    if stated or not _WANTS.search(reason):
        return ".".join(stated) or None
    for match in _MARKED.finditer(reason):
        name = match["name"]
        path = _path_of(name)
        has_form = re.search(r"^[a-z].*[_.]", name) or match["mark"]
        is_parameter = has_form or _WANTED.match(reason, match.end())
        if path and is_parameter and not _OF_NO_REQUEST.intersection(path):
            return ".".join(path)
    return None


def _demands(complaint: Complaint) -> Iterator[Demand]:
    """Yield what a reason demands, that of sentences with a name first."""
    text = complaint.reason[:LONGEST]
    stated = _stated_path(complaint)
    for match in (*_TOLD.finditer(text), *_ONLY.finditer(text)):
        link = match.groupdict().get("link") or ""
        is_duty = match.re is _ONLY or match["verb"] or _DUTY.search(link)
        path = _path_in(match, link, stated)
        if is_duty and path:
            yield Demand(path, _value_of(match))
    if stated:
        for match in _UNNAMED.finditer(text):
            if _DUTY.search(match["link"]):
                yield Demand(stated, _value_of(match))


def _path_in(match: re.Match[str], link: str, stated: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parameter that a demand names, or the stated one if it names no parameter."""
    name = match["name"] or ""
    path = _path_of(name)
    if _OF_NO_REQUEST.intersection(path):
        return ()
    has_form = _has_form_of_name(name, match["mark"]) or name in FEATURES
    is_parameter = has_form or _SET.search(link)
    return path if path and is_parameter else stated


def _path_of(name: str) -> tuple[str, ...]:
    """Return the parts of a name without those that only say where it is; empty for other words."""
    if name.isupper() or _NO_NAME.fullmatch(name):
        return ()
    parts = [part for part in name.split(".") if part]
    while parts and parts[0].lower() in _PLACES:
        parts.pop(0)
    if parts and parts[0].istitle():  # as the first word of a sentence
        parts[0] = parts[0].lower()
    return tuple(parts)


def _has_form_of_name(name: str, mark: str | None) -> bool:
    """Return whether a word is written as parameters are, and not as words of a sentence are."""
    return bool(mark) or re.search(r"[_.]|[a-z][A-Z]", name) is not None


def _stated_path(complaint: Complaint) -> tuple[str, ...]:
    """Return the one parameter that an error states as such; empty if there is none or several."""
    paths = {_path_of(place) for place in complaint.places} - {()}
    if len(paths) != 1:
        return ()
    (path,) = paths
    is_of_request = not _OF_NO_REQUEST.intersection(path)
    has_index = any(part.isdigit() for part in path)
    return path if is_of_request and not has_index else ()


def _value_of(match: re.Match[str]) -> Any:
    """Return the value that a demand states, as JSON data."""
    text = match["value"]
    if match["quote"]:
        return text.strip("`'\"")
    return json.loads(text.lower())


def merged(members: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return members of a request with others, which win; objects within them are merged too."""
    union = {**members, **added}
    for name in members.keys() & added.keys():
        if isinstance(members[name], Mapping) and isinstance(added[name], Mapping):
            union[name] = merged(members[name], added[name])
    return union
