"""The module of ``benchmarks/`` that lists results; that folder is no package of the tests."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_SPEC = spec_from_file_location(
    "benchmarks_results", Path(__file__).parents[1] / "benchmarks" / "results.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
module: Any = module_from_spec(_SPEC)
sys.modules[_SPEC.name] = module  # where pydantic looks for the names of types
_SPEC.loader.exec_module(module)
