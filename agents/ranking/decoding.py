"""Prompts and replies of a causal transformers model, as texts and as tokens.

These are functions of a tokenizer and a model; other modules decide when they run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fairqr.agents.models.question import Messages

Readings = Sequence[tuple[int, str]]
"""Tokens with their texts."""

BROKEN = "\ufffd"
"""The replacement for bytes that are not a complete character yet."""


def render(tokenizer: Any, messages: Messages) -> str:
    """Return the text that a model continues with its reply.

    The text contains all special tokens, so none are added when it is encoded. It is made by the
    tokenizer's chat template. If the template refuses the role ``system``, those messages go to the
    beginning of the first other message. Without a template, each message is a paragraph that
    begins with its role, as in ``User: …``, and the text ends with ``Assistant:``.

    Special tokens inside a message are broken up. Otherwise a document could end the message.

    Args:
        tokenizer: A tokenizer of transformers.
        messages: At least one message.
    """
    special = [token for token in tokenizer.all_special_tokens if len(token) > 2]
    clean = [
        {"role": message["role"], "content": _without(special, message["content"])}
        for message in messages
    ]
    if not tokenizer.chat_template:
        paragraphs = [f"{message['role'].capitalize()}: {message['content']}" for message in clean]
        begin = _begin(tokenizer)
        return begin + "\n\n".join([*paragraphs, "Assistant:"])
    try:
        return _templated(tokenizer, clean)
    except Exception:
        if (merged := _without_system(clean)) == clean:
            raise
        return _templated(tokenizer, merged)


def encode(tokenizer: Any, messages: Messages) -> list[int]:
    """Return the tokens of the text from :func:`render`."""
    text = render(tokenizer, messages).encode("utf-8", "replace").decode()
    tokens: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    return tokens


def label_tokens(tokenizer: Any, labels: Sequence[str]) -> list[int]:
    """Return the token of each label at the beginning of a reply.

    After a chat template, a reply begins without a space; after ``Assistant:``, with one.

    Raises:
        ValueError: A label is not a single token, or two labels are the same token.
    """
    spaces = ("", " ") if tokenizer.chat_template else (" ", "")
    found: list[int] = []
    for label in labels:
        forms = (
            tokenizer(space + label, add_special_tokens=False)["input_ids"] for space in spaces
        )
        token = next((form[0] for form in forms if len(form) == 1), None)
        if token is None or token == tokenizer.unk_token_id:
            raise ValueError(f"the model has no single token for '{label}'")
        found.append(token)
    if len(set(found)) < len(found):
        raise ValueError("two labels are the same token for the model")
    return found


def readings(tokenizer: Any, labels: Sequence[str]) -> Readings:
    """Return the tokens that read as one of the labels, also after a space or in another case."""
    words = {label.strip().casefold() for label in labels}
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return [(token, text) for token, text in enumerate(texts) if text.strip().casefold() in words]


def first_probabilities(model: Any, tokens: Sequence[int], wanted: Sequence[int]) -> list[float]:
    """Return the probabilities of some tokens as the next one, among the whole vocabulary.

    Args:
        model: The model, without gradients; it makes one pass.
        tokens: The preceding tokens, at least one.
        wanted: The tokens whose probabilities are returned, in the same order.
    """
    logits, _ = _next(model, tokens, None)
    shares = logits.softmax(-1)
    return [float(shares[token]) for token in wanted]


def written(
    model: Any,
    tokenizer: Any,
    tokens: Sequence[int],
    *,
    limit: int,
    temperature: float,
    presence_penalty: float,
    seed: int,
    tell: Callable[[str], None],
    go_on: Callable[[], bool],
) -> tuple[str, int]:
    """Write a reply, token by token.

    The sampling settings in the model's own files are ignored.

    Args:
        model: The model, without gradients.
        tokenizer: Its tokenizer.
        tokens: The preceding tokens, at least one.
        limit: How many tokens may be written.
        temperature: At 0, the likeliest token is taken each time.
        presence_penalty: Is subtracted from the logits of tokens that were already written.
        seed: The seed of the draws, which depend on nothing else.
        tell: Called with each piece of the text once it is certain.
        go_on: Called before each token; false ends the reply.

    Returns:
        The text without special tokens, and how many tokens were written, including the end token.
    """
    import torch

    stream = torch.Generator(device=model.device).manual_seed(seed)
    ends = set(_ends(model, tokenizer))
    reply: list[int] = []
    told, count = "", 0
    given, past = tokens, None
    while count < limit and go_on():
        logits, past = _next(model, given, past)
        if presence_penalty and reply:
            logits[sorted(set(reply))] -= presence_penalty
        if temperature > 0:
            drawn = torch.multinomial((logits / temperature).softmax(-1), 1, generator=stream)
            token = int(drawn)
        else:
            token = int(logits.argmax())
        count += 1
        if token in ends:
            break
        reply.append(token)
        given = [token]
        text = tokenizer.decode(reply, skip_special_tokens=True)
        if text.startswith(told) and not text.endswith(BROKEN):
            tell(text[len(told) :])
            told = text
    text = tokenizer.decode(reply, skip_special_tokens=True)
    if text.startswith(told):
        tell(text[len(told) :])
    return text, count


def _next(model: Any, tokens: Sequence[int], past: Any) -> tuple[Any, Any]:
    """Return the logits of the next token, shape (vocabulary,), and the keys and values."""
    import torch

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    # We only need the logits of the last position, but not every model can skip the others.
    last = {"logits_to_keep": 1} if "logits_to_keep" in _parameters(base) else {}
    given = torch.tensor([list(tokens)], device=model.device)
    output = model(input_ids=given, past_key_values=past, use_cache=True, **last)
    return output.logits[0, -1].double(), output.past_key_values


def _parameters(model: Any) -> Sequence[str]:
    return list(inspect.signature(model.forward).parameters)


def _ends(model: Any, tokenizer: Any) -> Iterator[int]:
    """Yield the tokens that end a reply."""
    for found in (model.generation_config.eos_token_id, tokenizer.eos_token_id):
        yield from found if isinstance(found, list) else [] if found is None else [found]


def _templated(tokenizer: Any, messages: Messages) -> str:
    # If a model thought aloud first, we would weigh its thoughts instead of its reply.
    text: str = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    return text


def _without_system(messages: Messages) -> Messages:
    said = [message["content"] for message in messages if message["role"] == "system"]
    others = [dict(message) for message in messages if message["role"] != "system"]
    if said and others:
        others[0]["content"] = "\n\n".join([*said, others[0]["content"]])
        return others
    return messages


def _without(special: Sequence[str], text: str) -> str:
    for token in special:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def _begin(tokenizer: Any) -> str:
    """Return the token that the tokenizer puts before a text, if any."""
    first = tokenizer("")["input_ids"][:1]
    begins = bool(first) and first[0] == tokenizer.bos_token_id
    return str(tokenizer.bos_token) if begins else ""
