"""The command, also as ``python -m fairqr``."""

from __future__ import annotations

from fairqr.cli.interrupts import ends_at_once


def main() -> None:
    """Load the command and run it."""
    with ends_at_once():
        from fairqr.cli.main import main as run
    run()


if __name__ == "__main__":
    main()
