"""The citation names this version, and the papers that the documentation names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()
    assert f"image: fairqr:{version}\n" in (ROOT / "deploy" / "compose.yaml").read_text()


def test_the_papers_are_those_of_the_readme() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())["references"]
    readme = (ROOT / "README.md").read_text()
    assert {paper["url"] for paper in cited} == set(re.findall(r"https://arxiv[^)]+", readme))
    for paper in cited:
        assert paper["authors"][0]["family-names"] in readme
        assert f" {paper['year']}](" in readme
