"""Models of transformers, loaded once in a process and run beside the event loop.

What needs the extra ``neural`` imports torch and transformers through here alone, so that a missing
extra, an unknown name or a hub that cannot be reached is said in one sentence.
"""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.hub import quiet, quiet_gguf, why_no_hub

__all__ = [
    "GGUF",
    "Pretrained",
    "load_causal",
    "load_pretrained",
    "state_of",
    "stated_limit",
    "to_float32",
    "token_limit",
]

T = TypeVar("T")

GGUF = ".gguf"
"""What the file of a model of llama.cpp ends with."""

USUAL_LIMIT = 512
"""How many tokens we give a model that states no limit, such as T5 with its relative positions."""

UNLIMITED = 1_000_000
"""A tokenizer without a limit states a number far above this."""

OFFSET_TYPES = ("roberta", "camembert", "longformer", "mpnet", "data2vec", "ibert", "xmod")
"""Parts of the names of models whose positions start behind the number of the padding token."""

PLAIN_ENCODER = "AutoModel"
"""The kind of which only the hidden states are used."""

# A model that nobody holds any more gives its memory to the next.
_loaded: WeakValueDictionary[tuple[str, ...], Pretrained] = WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Pretrained:
    """A model in evaluation mode, with its tokenizer.

    Attributes:
        name: A hub id, a folder or a file.
        model: Of transformers, on ``device``.
        tokenizer: Of transformers.
        device: ``cuda`` where there is one, else ``cpu``.
    """

    name: str
    model: Any
    tokenizer: Any
    device: str
    # A thread of its own: what waits for its turn holds none of those that others need.
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "fairqr-neural"), repr=False
    )

    async def run(self, work: Callable[[], T]) -> T:
        """Do work with the model on a thread, one at a time, without gradients."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, _ungraded, work)


def _ungraded(work: Callable[[], T]) -> T:
    import torch

    with torch.inference_mode():
        return work()


async def load_pretrained(kind: str, name: str) -> Pretrained:
    """Load a model and its tokenizer; the same one is loaded once.

    Args:
        kind: The class of transformers that loads it, e.g.
            ``AutoModelForSequenceClassification``.
        name: A folder, or an id at the hub, from where transformers downloads it on first use.
            Where the hub cannot be reached, what was downloaded before is taken.

    Raises:
        ModelUnavailableError: The extra ``neural`` is missing, there is no such model, or it is one
            of another kind.
    """
    return await asyncio.to_thread(_load, kind, name)


def _load(kind: str, name: str) -> Pretrained:
    with _lock:
        found = _loaded.get((kind, name))
        if found is None:
            found = _loaded[kind, name] = _new(kind, name)
        return found


async def load_causal(name: str, adapter: str = "") -> Pretrained:
    """Load a decoder-only model and its tokenizer; the same one is loaded once.

    Weights are in float32, as GGUF files are read, where the model runs on a CPU.

    Args:
        name: A hub id, a folder, or a GGUF file, which also holds the tokenizer.
        adapter: The folder of an adapter of peft that was trained on it; empty for none.

    Raises:
        ModelUnavailableError: An extra is missing, there is no such model, it is one of another
            kind, or the adapter does not fit it.
    """
    return await asyncio.to_thread(_load_causal, name, adapter)


def _load_causal(name: str, adapter: str) -> Pretrained:
    # Files that were trained on in place are another model.
    key = ("causal", name, state_of(Path(name)), adapter, state_of(Path(adapter or "-")))
    with _lock:
        found = _loaded.get(key)
        if found is None:
            found = _new("AutoModelForCausalLM", name)
            if found.device == "cpu":
                to_float32(found.model)
            if adapter:
                # The layers of the base are replaced, so that nobody else may have it.
                found = Pretrained(adapter, _adapted(found, adapter), found.tokenizer, found.device)
            _loaded[key] = found
        return found


def stated_limit(config: Any, tokenizer: Any) -> int | None:
    """Return how many tokens a model takes, special ones included; None if nothing states it.

    Args:
        config: The model's configuration. Of the ``max_position_embeddings`` that RoBERTa and its
            relatives state, no token can have the first few: 512 are left of 514.
        tokenizer: Its ``model_max_length`` is a limit, too.
    """
    positions = getattr(config, "max_position_embeddings", None)
    kind = str(getattr(config, "model_type", ""))
    if isinstance(positions, int) and any(part in kind for part in OFFSET_TYPES):
        positions -= (config.pad_token_id or 0) + 1
    limits = (positions, getattr(tokenizer, "model_max_length", None))
    known = [limit for limit in limits if isinstance(limit, int) and 0 < limit < UNLIMITED]
    return min(known, default=None)


def token_limit(config: Any, tokenizer: Any) -> int:
    """Return how many tokens to give a model: the stated limit, or else 512."""
    return stated_limit(config, tokenizer) or USUAL_LIMIT


def to_float32(model: Any) -> None:
    """Turn the weights of a model into float32; those that a quantiser packed stay as they are."""
    if not getattr(model, "is_quantized", False):
        model.float()


def state_of(path: Path) -> str:
    """Return what changes with a file, or with the files of a folder; nothing for any other name.

    A model that is trained on in place keeps its name, and its old answers must not come back.
    """
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.is_file())
    else:
        return ""
    states = ((file.name, file.stat()) for file in files)
    return ";".join(f"{name},{state.st_size},{state.st_mtime_ns}" for name, state in states)


def _new(kind: str, name: str) -> Pretrained:
    try:
        import torch
        import transformers
    except ImportError:
        raise ModelUnavailableError(
            f"The model {name} needs torch and transformers: run `pip install 'fairqr[neural]'`."
        ) from None
    where, options = _place_of(name)
    missed = None
    try:
        with quiet(transformers, local=Path(name).exists()), quiet_gguf():
            missed = why_no_hub(name)
            options["local_files_only"] = missed is not None
            tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
            model, report = getattr(transformers, kind).from_pretrained(
                where, **options, output_loading_info=True
            )
    except Exception as error:
        if missed is not None and isinstance(error, OSError):
            raise ModelUnavailableError(
                f"The model {name} was never downloaded as a whole, and the hub cannot be asked "
                f"for it ({missed}); mend that, or name a folder with the model."
            ) from None
        raise ModelUnavailableError(
            f"The model {name} cannot be loaded as {kind} ({one_line(error, 200)}); check its name "
            "or folder, and that the hub can be reached if it was never downloaded."
        ) from None
    # Transformers fills what the files lack with random numbers. Encoders are saved without a
    # pooler and used without; some classifiers judge by it.
    missing = sorted(report.get("missing_keys", ()))
    if kind == PLAIN_ENCODER:
        missing = [key for key in missing if "pooler" not in key]
    if missing:
        raise ModelUnavailableError(
            f"The model {name} has no weights '{missing[0]}', which {kind} needs; choose one that "
            "was trained for this."
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Pretrained(name, model.to(device).eval(), tokenizer, device)


def _place_of(name: str) -> tuple[str, dict[str, Any]]:
    """Return where transformers is to look, and what else it has to be told."""
    path = Path(name)
    if path.suffix.lower() != GGUF:
        return name, {}
    if not path.is_file():
        raise ModelUnavailableError(f"There is no file {name}; name the GGUF file of a model.")
    if importlib.util.find_spec("gguf") is None:
        raise ModelUnavailableError(
            f"The model {name} needs the package gguf: run `pip install 'fairqr[tune]'`."
        )
    return str(path.parent), {"gguf_file": path.name}


def _adapted(base: Pretrained, folder: str) -> Any:
    """Return a model with an adapter, of which each weight was found in the folder."""
    try:
        import peft
        import transformers
    except ImportError:
        raise ModelUnavailableError(
            f"The adapter {folder} needs peft: run `pip install 'fairqr[tune]'`."
        ) from None
    # Peft would look for what is missing at the hub.
    if not any(Path(folder).glob("adapter_model.*")):
        raise ModelUnavailableError(
            f"The folder {folder} has no weights of an adapter (adapter_model.safetensors); name "
            "one that training has finished."
        )
    try:
        with quiet(transformers, local=True), quiet_gguf():
            model = peft.PeftModel.from_pretrained(base.model, folder)
            saved = set(peft.load_peft_weights(folder, device="cpu"))
            taken = set(peft.get_peft_model_state_dict(model))
    except Exception as error:
        raise ModelUnavailableError(
            f"The adapter {folder} cannot be used with {base.name} ({one_line(error, 200)}); name "
            "the one that was trained on it."
        ) from None
    # Peft leaves what it does not find at its begin, and what does not fit aside.
    if saved != taken:
        raise ModelUnavailableError(
            f"The adapter {folder} does not fit {base.name}, at '{min(saved ^ taken)}'; name the "
            "model that it was trained on."
        )
    return model.to(base.device).eval()
