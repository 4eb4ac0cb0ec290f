"""Names of bases that hold wherever an adapter is read from."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairqr.agents.ranking.causal_weights import base_sha256, lasting_name
from fairqr.base.errors import InputError
from fairqr.base.files import sha256_of


def test_a_path_is_kept_whole_and_other_names_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"weights")
    # A folder of the same name does not stand in for the embedded weights.
    (tmp_path / "smollm2-135m").mkdir()
    assert lasting_name("model.gguf") == str(tmp_path.resolve() / "model.gguf")
    assert lasting_name("smollm2-135m") == "smollm2-135m"
    assert lasting_name("owner/model") == "owner/model"


def test_an_adapter_is_no_base(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="is an adapter"):
        lasting_name(str(tmp_path))


def test_the_hash_is_that_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRQR_CACHE_DIR", str(tmp_path))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    assert base_sha256(str(path)) == sha256_of(path)
    assert base_sha256(str(tmp_path)) == base_sha256("owner/model") == ""
    assert base_sha256("smollm2-135m") == "", "its weights are not pulled"
