"""``python -m fairqr``: the command."""

from __future__ import annotations

from fairqr.cli.main import main

if __name__ == "__main__":
    main()
