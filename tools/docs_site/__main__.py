"""Builds the site: ``make docs``.

The pages of ``docs/`` and the generated reference are put together in ``build/docs``, from which
Zensical makes ``build/site``. A link, an anchor or a picture that leads nowhere ends the build.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from docs_site.reference import write_reference

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
# Zensical checks links to pages; these are to pictures, notebooks and other files.
FILE = re.compile(r"\]\((?!https?:|#)([^)#\s]+\.(?!md)\w+)\)")


def main() -> int:
    """Build the site, and return the exit code."""
    pages = BUILD / "docs"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    write_reference(pages / "reference")
    lost = [
        f"{page.relative_to(pages)}: there is no {name}"
        for page in sorted(pages.rglob("*.md"))
        for name in FILE.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / name).is_file()
    ]
    sys.stderr.writelines(f"{line}\n" for line in lost)
    zensical = Path(sys.executable).with_name("zensical")
    built = subprocess.run([zensical, "build", "--clean", "--strict"], cwd=ROOT)  # noqa: S603
    return 1 if lost else built.returncode


if __name__ == "__main__":
    sys.exit(main())
