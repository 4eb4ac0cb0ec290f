"""Libraries of extras that are loaded when a test uses them: every worker collects all tests."""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from typing import Any

import pytest


def later(name: str, extra: str) -> Any:
    """Return a library that is loaded with its first use; where it is missing, skip the module."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is missing: install the extra {extra}", allow_module_level=True)
    return _Library(name)


class _Library:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if "PYTEST_CURRENT_TEST" not in os.environ:  # a plugin looks for its marks
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
