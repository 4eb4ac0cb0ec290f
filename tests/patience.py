"""How long tests wait for what should happen soon."""

from __future__ import annotations

PATIENCE = 480
"""Seconds until a test that waits for something gives up.

So long that no machine is too busy: only a test that fails waits to the end.
"""
