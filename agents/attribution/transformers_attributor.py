"""Attribution by a model of transformers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fairqr.agents.attribution.naming import AttributorName
from fairqr.agents.attribution.nli import (
    FloatArray,
    IntArray,
    NliAttributor,
    NliModel,
    fingerprint_of,
)
from fairqr.base.neural import Pretrained, load_pretrained, token_limit

__all__ = ["DEFAULT_NLI_MODEL", "TransformersAttributor"]

DEFAULT_NLI_MODEL = "FacebookAI/roberta-large-mnli"
"""The model of the paper."""


class TransformersAttributor(NliAttributor):
    """Judges with any model that transformers loads as a sequence classifier, in float32.

    Args:
        name: Its ``model`` is a folder or a hub id; if empty, the paper's model is used.
    """

    def __init__(self, name: AttributorName) -> None:
        model = name.model or DEFAULT_NLI_MODEL
        super().__init__(AttributorName("transformers", model, name.threshold, name.entailment))

    async def load(self, model: str) -> NliModel:
        """Load the model with transformers."""
        loaded = await load_pretrained("AutoModelForSequenceClassification", model)
        config = loaded.model.config
        folder = Path(model)
        if await asyncio.to_thread(folder.is_dir):
            fingerprint = await asyncio.to_thread(fingerprint_of, folder)
        else:
            fingerprint = getattr(config, "_commit_hash", None) or ""
        return NliModel(
            tokenizer=loaded.tokenizer,
            labels=config.id2label,
            longest=token_limit(config, loaded.tokenizer),
            logits=lambda inputs: _logits(loaded, inputs),
            run=loaded.run,
            fingerprint=fingerprint,
        )


def _logits(loaded: Pretrained, inputs: Mapping[str, IntArray]) -> FloatArray:
    import torch

    # Some models are stored in half precision, which would change close verdicts.
    model = loaded.model.float()
    tensors = {name: torch.from_numpy(array).to(loaded.device) for name, array in inputs.items()}
    return np.asarray(model(**tensors).logits.cpu().numpy(), dtype=np.float64)
