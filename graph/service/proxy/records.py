"""What is recorded of searches."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]
"""What the log and the metrics say of a list."""

Outcome = Record | str
"""What became of a search: the record of its list, or in a word why it has none."""
