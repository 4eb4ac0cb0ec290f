"""Telling a model's weights from others of the same name."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fairqr.retrieval.files import sha256_of

__all__ = ["fingerprint_of"]

_PARTS = (".safetensors", ".bin", ".onnx", ".onnx_data", ".data", ".json", ".txt", ".model")


def fingerprint_of(folder: Path) -> str:
    """Return a hash over the names and contents of a model's files, weights and tokenizer alike."""
    files = sorted(path for path in folder.iterdir() if path.suffix in _PARTS and path.is_file())
    listed = "".join(f"{path.name} {sha256_of(path)}\n" for path in files)
    return hashlib.sha256(listed.encode()).hexdigest()
