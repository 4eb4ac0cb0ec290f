"""The errors that a user can cause or fix, one class per kind.

Each message is one sentence that says what is wrong and what to do. The command prints it and exits
with code 2; the service returns a typed problem whose ``type`` is the class's ``slug``: its name,
such as ``index-not-found`` for ``IndexNotFoundError``, unless the class states another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pydantic import ValidationError


class FairqrError(RuntimeError):
    """Base of all errors that a user can cause or fix.

    LangGraph's servers hide the message of an error unless it is one of a few built-in classes.
    So this is a ``RuntimeError``, and wrong input is a ``ValueError`` as well.

    The service answers with ``http_status`` and ``title``. A class has those of its parent, unless
    it states others where it begins.
    """

    slug: ClassVar[str] = "error"
    http_status: int = 422
    title: str = "The request cannot be served"

    def __init_subclass__(cls, **answer: Any) -> None:
        words = re.findall("[A-Z][a-z]*", cls.__name__.removesuffix("Error"))
        for name, value in {"slug": "-".join(words).lower(), **answer}.items():
            setattr(cls, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # A process of Ray sends errors; classes differ in what makes them, and all have a message.
        return type(self).__new__, (type(self), str(self)), vars(self)


class InputError(FairqrError, ValueError, title="A parameter is wrong"):
    """A parameter is out of range or does not fit the others."""


class QueryError(InputError):
    """The query is empty, or no document matches it."""


class SchemaError(InputError):
    """The YAML schema of a corpus is missing or wrong."""


class SourceError(InputError, http_status=503, title="The source cannot be used"):
    """The description of a source is wrong, or does not fit the engine that it describes."""


class UnsupportedError(InputError, title="The search engine cannot do this"):
    """The engine cannot do what is asked for."""


class UnknownAttributeError(InputError, title="There is no such attribute or group"):
    """The schema has no such attribute or group."""


class TargetError(InputError, title="The target is not a distribution"):
    """The target is not a distribution over the groups of the attribute."""


class CorpusError(InputError):
    """A corpus is missing, empty, or has a line that is not a document."""


class PromptError(InputError, title="The prompt cannot be used"):
    """A prompt file is malformed or does not exist."""


class PromptFileError(PromptError, slug="prompt"):
    """The file of a prompt is wrong."""


class ConfigError(InputError, http_status=500, title="The service is misconfigured"):
    """The settings file or a ``FAIRQR_…`` variable has an invalid value."""


class BudgetError(InputError):
    """The budget is too small for the run.

    ``unit`` is ``model_calls`` or ``tokens``; ``needed`` and ``limit`` are in that unit.
    """

    def __init__(self, unit: str, needed: int, limit: int, message: str) -> None:
        super().__init__(message)
        self.unit = unit
        self.needed = needed
        self.limit = limit


class OtherRunError(InputError, slug="input"):
    """The folder holds a run of something else, such as another version of the index."""


class LimitError(InputError, title="The request exceeds a limit", slug="over-limit"):
    """A request exceeds a limit of the service.

    ``limit`` is the setting's name, such as ``k``, and ``most`` its value.
    """

    def __init__(self, limit: str, most: float, message: str) -> None:
        super().__init__(message)
        self.limit = limit
        self.most = most


class NotAllowedError(FairqrError, http_status=403, title="This is not offered"):
    """The service does not offer this index, model, prompt or server."""


class AccessError(FairqrError, http_status=401, title="An access key is needed"):
    """The access key is missing, does not exist or was revoked."""


class ScopeError(FairqrError, http_status=403, title="The access key does not allow this"):
    """The access key does not allow this request."""


class BusyError(FairqrError, http_status=503, title="The service is busy"):
    """The service is full, or this key has reached its limit; try again later.

    ``retry_after`` is in seconds. ``own`` says that the key reached its own limit, and not that
    the whole service is full.
    """

    def __init__(self, message: str, *, retry_after: float, own: bool) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        if own:
            self.http_status = 429
            self.title = "Too many requests"


class RunNotFoundError(FairqrError, http_status=404, title="There is no such run"):
    """The run does not exist, belongs to another key, or was deleted after its retention time."""


class RunCancelledError(
    FairqrError, http_status=409, title="The run was cancelled", slug="cancelled"
):
    """The run was cancelled before it had a result."""


class RunTimeoutError(FairqrError, http_status=504, title="The run took too long"):
    """The run took longer than the service allows."""


class RunInterruptedError(
    FairqrError, http_status=503, title="The run was interrupted", slug="interrupted"
):
    """The service stopped during a run that it does not resume."""


class StoreUnavailableError(FairqrError, http_status=503, title="The database cannot be reached"):
    """The database of runs cannot be reached, or belongs to another version."""


class IndexNotFoundError(FairqrError, http_status=404, title="There is no such index"):
    """No index or corpus has that name."""


class DocumentNotFoundError(FairqrError, http_status=404, title="There is no such document"):
    """The source has no document with that id, or cannot look documents up by id."""


class IndexVersionError(FairqrError, http_status=503, title="The index cannot be read"):
    """The index was written by another version of fairqr, or is damaged."""


class IndexUnavailableError(FairqrError, http_status=503, title="The index cannot be reached"):
    """The index cannot be reached or refuses the request."""


class BuildInProgressError(FairqrError, http_status=503, title="The index is being built"):
    """Another process is writing to the same index."""


class ModelUnavailableError(FairqrError, http_status=503, title="The model cannot be used"):
    """The language model cannot be started, or its name is wrong."""


class WorkersError(FairqrError, http_status=503, title="The workers cannot be reached"):
    """The machines that share the work of an experiment cannot be reached, or failed."""


class ModelError(FairqrError, http_status=502, title="The model gave no usable reply"):
    """The language model did not give a usable reply.

    ``status`` is one of the values of :data:`fairqr.agents.models.replies.Status`.
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


def one_line(text: object, limit: int = 300) -> str:
    """Return ``text`` on one line, cut to ``limit`` characters, for use inside an error message."""
    flat = " ".join(str(text).split())
    if len(flat) <= limit:
        return flat
    return flat[: limit - 1] + "…"


def nearest_names(name: str, known: Iterable[str]) -> str:
    """Return the known names closest to a wrong one, best first, such as "did you mean 'people'?".

    Returns:
        An empty string if no known name is close.
    """
    name_of = {known_name.casefold(): known_name for known_name in sorted(known)}
    closest = get_close_matches(name.casefold(), name_of)
    if not closest:
        return ""
    quoted = [f"'{name_of[match]}'" for match in closest]
    return f"did you mean {' or '.join(quoted)}?"


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the place and the reason of the first problem that pydantic found.

    The place is a dotted path, empty for the whole object. The reason has no full stop.
    """
    problem = error.errors()[0]
    location = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return location, "there is no such entry"
    return location, problem["msg"].removeprefix("Value error, ").rstrip(".")


@contextmanager
def parameter_errors() -> Iterator[None]:
    """Raise our error about the first parameter that pydantic refuses inside.

    Pydantic wraps every ``ValueError`` of a validator, so also our :class:`InputError`. If one of
    ours is wrapped, it is raised as it is.
    """
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        for problem in error.errors():
            cause = problem.get("ctx", {}).get("error")
            if isinstance(cause, FairqrError):
                raise cause from None
        name, reason = first_problem(error)
        subject = f"The parameter '{name}' is wrong" if name else "The parameters do not fit"
        raise InputError(f"{subject}: {one_line(reason)}.") from None
