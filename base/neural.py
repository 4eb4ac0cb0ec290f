"""Models of transformers, loaded once in a process and run beside the event loop.

All code that needs the extra ``neural`` imports torch and transformers through this module. So a
missing extra, an unknown name and an unreachable hub each give one clear sentence.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from fairqr.base.errors import ModelUnavailableError, one_line
from fairqr.base.extras import library

T = TypeVar("T")

UNLIMITED = 1_000_000
"""Limits from here on mean that the tokenizer has none: it states a huge number."""

OFFSET_TYPES = ("roberta", "camembert", "longformer", "mpnet", "data2vec", "ibert", "xmod")
"""Parts of the model types that number positions from after the padding token's number."""

PROBE_SECONDS = 4.0
"""How long the hub may take to answer. Transformers would retry each file for half a minute."""

# Weak, so that the memory of a model is freed when nobody uses it any more.
_loaded: WeakValueDictionary[tuple[str, ...], PretrainedModel] = WeakValueDictionary()
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class PretrainedModel:
    """A model in evaluation mode, with its tokenizer.

    Attributes:
        model: A model of transformers, on ``device``.
        tokenizer: The model's tokenizer, of transformers.
        device: Where it reads: ``cuda`` if available, or else ``cpu``.
    """

    model: Any
    tokenizer: Any
    device: str
    # A thread of its own, so that waiting work does not occupy threads that others need.
    _thread: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, "fairqr-neural"), repr=False
    )

    async def run(self, work: Callable[[], T]) -> T:
        """Run work with the model on its thread, one piece at a time, without gradients."""
        import torch

        ungraded = torch.inference_mode()(work)
        return await asyncio.get_running_loop().run_in_executor(self._thread, ungraded)


@dataclass(frozen=True, slots=True)
class Placement:
    """How the weights of a model are kept.

    Attributes:
        dtype: Their numbers: ``float32``, ``bfloat16``, ``float16``, or ``auto`` as they were
            saved. By default as transformers has it, and float32 for decoder-only models on a CPU.
        device_map: Where they are, as transformers takes it, such as ``auto``; it needs the package
            accelerate. By default on one device.
    """

    dtype: str | None = None
    device_map: str | None = None

    def options(self) -> dict[str, str]:
        """Return the options for transformers."""
        options = {"dtype": self.dtype, "device_map": self.device_map}
        return {name: value for name, value in options.items() if value is not None}


AS_USUAL = Placement()


async def load_pretrained(kind: str, name: str, placement: Placement = AS_USUAL) -> PretrainedModel:
    """Load a model and its tokenizer; the same one is loaded once.

    Args:
        kind: The class of transformers that loads it, e.g.
            ``AutoModelForSequenceClassification``.
        name: A folder or a hub id. Transformers downloads the model on first use, and the download
            is used from then on.
        placement: How its weights are kept.

    Raises:
        ModelUnavailableError: The extra ``neural`` is missing, the model does not exist, or it is
            of another kind.
    """
    key = (kind, name, str(placement))
    return await asyncio.to_thread(_once, key, lambda: _new(kind, name, placement))


async def load_causal(
    name: str, adapter: str = "", placement: Placement = AS_USUAL
) -> PretrainedModel:
    """Load a decoder-only model and its tokenizer; the same one is loaded once.

    On a CPU the weights are in float32, as GGUF files are read.

    Args:
        name: A hub id, a folder, or a GGUF file, which also contains the tokenizer.
        adapter: The folder of a peft adapter that was trained on this model; empty for none.
        placement: How its weights are kept.

    Raises:
        ModelUnavailableError: An extra is missing, the model does not exist or is of another kind,
            or the adapter does not fit it.
    """
    # If training changed the files in place, they are another model.
    files = (name, state_of(Path(name)), adapter, state_of(Path(adapter or "-")))
    key = ("causal", *files, str(placement))
    return await asyncio.to_thread(_once, key, lambda: _new_causal(name, adapter, placement))


def _once(key: tuple[str, ...], make: Callable[[], PretrainedModel]) -> PretrainedModel:
    """Return the model that was loaded under a key, and make it if there is none."""
    with _lock:
        model = _loaded.get(key)
        if model is None:
            model = make()
            _loaded[key] = model
        return model


def stated_limit(config: Any, tokenizer: Any) -> int | None:
    """Return the stated token limit of a model, special tokens included, or None if it has none.

    Args:
        config: The model's configuration. RoBERTa and its relatives do not use the first few of
            their ``max_position_embeddings``: of 514, 512 are left.
        tokenizer: Its ``model_max_length`` is a limit, too.
    """
    positions = getattr(config, "max_position_embeddings", None)
    kind = str(getattr(config, "model_type", ""))
    if isinstance(positions, int) and any(part in kind for part in OFFSET_TYPES):
        positions -= (config.pad_token_id or 0) + 1
    limits = []
    for limit in (positions, getattr(tokenizer, "model_max_length", None)):
        if isinstance(limit, int) and 0 < limit < UNLIMITED:
            limits.append(limit)
    return min(limits, default=None)


def token_limit(config: Any, tokenizer: Any) -> int:
    """Return how many tokens to give a model: the stated limit, or else 512."""
    return stated_limit(config, tokenizer) or 512  # T5 states none, by its relative positions


def to_float32(model: Any) -> None:
    """Convert the weights of a model to float32; quantised models stay as they are."""
    if not getattr(model, "is_quantized", False):
        model.float()


def state_of(path: Path) -> str:
    """Return a text that changes with a file or a folder's files; empty if there is neither.

    A model that is trained in place keeps its name, and its old answers must not be reused.
    """
    states = []
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if file.is_file():
            status = file.stat()
            states.append(f"{file.name},{status.st_size},{status.st_mtime_ns}")
    return ";".join(states)


def _new(kind: str, name: str, placement: Placement) -> PretrainedModel:
    """Load a model and its tokenizer; see :func:`load_pretrained`."""
    subject = f"The model {name}"
    torch = library("torch", subject, "neural", ModelUnavailableError)
    transformers = library("transformers", subject, "neural", ModelUnavailableError)
    hub = library("huggingface_hub", subject, "neural", ModelUnavailableError)
    path = Path(name)
    options: dict[str, str] = {}
    if path.suffix.lower() == ".gguf":  # a model file of llama.cpp
        name = str(path.parent)
        options = {"gguf_file": path.name}

    def load(local: bool) -> tuple[Any, Any, Any]:
        source: dict[str, Any] = {**options, "local_files_only": local}
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, **source)
        # Without its files, transformers makes one that knows nothing but special tokens.
        if len(tokenizer) <= len(tokenizer.all_special_tokens) + 1:
            raise OSError("its tokenizer has no words")
        model, report = getattr(transformers, kind).from_pretrained(
            name,
            output_loading_info=True,
            # With peft, transformers would ask the hub for an adapter of a downloaded model.
            adapter_kwargs={"local_files_only": local},
            **source,
            **placement.options(),
        )
        return tokenizer, model, report

    try:
        with quiet(downloads=not path.exists()):
            try:
                tokenizer, model, report = load(True)
            except Exception:  # never downloaded, or only a part of it
                if path.exists() or options:
                    raise
                hub.get_session().head(hub.constants.ENDPOINT, timeout=PROBE_SECONDS)
                tokenizer, model, report = load(False)
    except Exception as error:
        raise ModelUnavailableError(
            f"The model {path} cannot be loaded as {kind} ({one_line(error, 200)}); check its name "
            f"or folder, and, if it was never downloaded, that {hub.constants.ENDPOINT} answers."
        ) from None

    missing = _missing_weights(kind, report)
    if missing:
        problem = f"has no weights '{min(missing)}', which {kind} needs"
        raise ModelUnavailableError(f"The model {path} {problem}; choose another.")
    if placement.device_map is not None:
        return PretrainedModel(model.eval(), tokenizer, str(model.device))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return PretrainedModel(model.to(device).eval(), tokenizer, device)


def _missing_weights(kind: str, report: Mapping[str, Any]) -> list[str]:
    """Return the weights that a model lacks, and that transformers fills with random numbers."""
    missing = list(report.get("missing_keys", ()))
    if kind == "AutoModel":
        # Encoders are saved and used without a pooler, but some classifiers need one.
        missing = [name for name in missing if "pooler" not in name]
    return missing


def _new_causal(name: str, adapter: str, placement: Placement) -> PretrainedModel:
    base = _new("AutoModelForCausalLM", name, placement)
    if base.device == "cpu" and placement.dtype is None:
        to_float32(base.model)
    if not adapter:
        return base
    peft = library("peft", f"The adapter {adapter}", "tune", ModelUnavailableError)
    folder = str(Path(adapter).resolve())  # which is no name on the hub
    try:
        with quiet():
            model = peft.PeftModel.from_pretrained(base.model, folder)
            # Peft keeps what stood there by chance, and ignores what it does not know.
            saved = peft.load_peft_weights(folder, device="cpu")
            if saved.keys() != peft.get_peft_model_state_dict(model).keys():
                raise ValueError("it has other weights than such a model")
    except Exception as error:
        raise ModelUnavailableError(
            f"The adapter {adapter} cannot be used with {name} ({one_line(error, 200)}); choose "
            "another."
        ) from None
    if placement.device_map is None:
        model = model.to(base.device)
    return PretrainedModel(model.eval(), base.tokenizer, base.device)


@contextmanager
def quiet(*, downloads: bool = False) -> Iterator[None]:
    """Keep notices and bars of transformers, its conversion of GGUF files, and peft off stderr.

    Args:
        downloads: Whether files may be downloaded; on a terminal the bars of that are shown.
    """
    hub_logging = importlib.import_module("huggingface_hub.utils.logging")
    logging = importlib.import_module("transformers.utils.logging")
    conversion: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    shows_downloads = downloads and sys.stderr.isatty()
    with ExitStack() as restored, warnings.catch_warnings(action="ignore"):
        for module in (hub_logging, logging):
            restored.callback(module.set_verbosity, module.get_verbosity())
            module.set_verbosity_error()
        restored.callback(setattr, conversion, "tqdm", conversion.tqdm)
        conversion.tqdm = functools.partial(conversion.tqdm, disable=True)
        if logging.is_progress_bar_enabled() and not shows_downloads:
            restored.callback(logging.enable_progress_bar)
            logging.disable_progress_bar()
        yield
