"""The notebooks of the docs run as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.patience import PATIENCE

NOTEBOOKS = sorted((Path(__file__).parents[3] / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.promise("command")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_kept_without_its_outputs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every notebook of the docs runs.

    A cell that fails ends the run with its error; a plot and a table come out.
    """
    monkeypatch.setenv("FAIRQR_DATA_DIR", str(tmp_path / "data"))
    notebook: Any = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    NotebookClient(
        notebook,
        timeout=PATIENCE,
        startup_timeout=PATIENCE,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    kinds = {kind for cell in cells for output in cell.outputs for kind in output.get("data", {})}
    assert "text/html" in kinds
    assert kinds & {"image/png", "image/svg+xml"}
    assert not [o for cell in cells for o in cell.outputs if o.get("name") == "stderr"]
