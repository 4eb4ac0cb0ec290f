"""Imports of libraries that only an extra of fairqr installs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fairqr.base.errors import FairqrError, InputError


def library(
    name: str, user: str, extra: str = "evaluation", error: type[FairqrError] = InputError
) -> Any:
    """Import a library and return its module.

    Args:
        name: The name of the module.
        user: What needs the library, for the message: ``The measure ROUGE``.
        extra: The extra that installs it.
        error: The class of the error to raise.

    Raises:
        FairqrError: The library is not installed.
    """
    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        message = f"{user} needs {package}; install it with: pip install 'fairqr[{extra}]'"
        raise error(message) from None
