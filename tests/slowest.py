"""A plugin of pytest: where the time of a run went, by file."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain

import pytest

SHOWN = 20


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the slowest files and the total, in seconds of setup, call and teardown.

    With xdist this is the work of all workers together, which is more than the time that passed.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.split("::")[0]] += report.duration
    if not seconds:
        return
    slowest = sorted(seconds, key=seconds.__getitem__, reverse=True)[:SHOWN]
    terminalreporter.section(f"the slowest {len(slowest)} of {len(seconds)} files")
    for name in slowest:
        terminalreporter.line(f"{seconds[name]:9.1f} s  {name}")
    terminalreporter.line(f"{sum(seconds.values()):9.1f} s  all files")
