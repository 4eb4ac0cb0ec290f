"""One question to a model: what is sent, what is made of the answer, and its trace."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack

from fairqr.agents.endpoint import Endpoint
from fairqr.agents.failures import no_answer_within
from fairqr.agents.forms import Form
from fairqr.agents.question import Messages, Question
from fairqr.agents.replies import Reply, Usage
from fairqr.agents.streaming import Telling
from fairqr.errors import ModelError
from fairqr.telemetry import Span, span

__all__ = ["converse"]


async def converse(
    endpoint: Endpoint,
    question: Question,
    form: Form,
    deadline: float | None,
    telling: Telling | None = None,
) -> tuple[Reply, float]:
    """Ask when it is our turn, and once more with the error where the reply is of another form.

    Args:
        endpoint: Which model.
        question: What to ask.
        form: What is wanted back.
        deadline: Seconds from now after which to give up, the wait for our turn included. Where
            None, or later, the model has twice the time of a request from when it is our turn.
        telling: Told each piece of a text as it comes.

    Returns:
        The reply, and the milliseconds that the model took for it.

    Raises:
        ModelUnavailableError: There is no such model; see :meth:`Endpoint.client`.
    """
    longest = 2 * endpoint.timeout
    arrived = time.perf_counter()
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(deadline):
                await stack.enter_async_context(endpoint.turn())
        except TimeoutError:
            message = no_answer_within(endpoint.name, deadline or 0)
            return Reply("timeout", message=message), 0.0
        began = time.perf_counter()
        left = longest if deadline is None else deadline - (began - arrived)
        reply = await _traced(endpoint, question, form, min(longest, left), telling)
        return reply, (time.perf_counter() - began) * 1000


async def _traced(
    endpoint: Endpoint, question: Question, form: Form, limit: float, telling: Telling | None
) -> Reply:
    prompt = question.prompt
    with span(
        f"chat {endpoint.model}",
        **{
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": endpoint.provider,
            "gen_ai.request.model": endpoint.model,
            "fairqr.prompt.id": prompt.id,
            "fairqr.prompt.version": prompt.version,
            "fairqr.prompt.sha256": prompt.sha256,
        },
    ) as step:
        reply = await _asked(endpoint, question, form, step, limit, telling)
        step.set("fairqr.status", reply.status)
        step.set("gen_ai.usage.input_tokens", reply.usage.prompt_tokens)
        step.set("gen_ai.usage.output_tokens", reply.usage.completion_tokens)
        return reply


async def _asked(
    endpoint: Endpoint,
    question: Question,
    form: Form,
    step: Span,
    limit: float,
    telling: Telling | None,
) -> Reply:
    def on_retry(number: int, error: BaseException) -> None:
        step.event("retry", attempt=number, error=type(error).__name__)

    messages: Messages = question.prompt.render(question.values)
    step.content("gen_ai.input.messages", messages)
    usage = Usage()
    wrong = ""
    try:
        async with asyncio.timeout(limit):
            for _ in range(2 if form.may_ask_again else 1):
                answer = await endpoint.send(
                    messages,
                    question,
                    form.wanted,
                    limit=limit,
                    on_retry=on_retry,
                    telling=telling,
                )
                usage += answer.usage
                step.content("gen_ai.output.messages", answer.text)
                if answer.declined:
                    message = f"The model {endpoint.name} declined to answer."
                    return Reply("refused", message=message, usage=usage)
                try:
                    return Reply("ok", form.read(answer), usage=usage)
                except ValueError as error:
                    wrong = str(error)
                    messages = [*messages, *_complaint(answer.text, wrong)]
    except ModelError as error:
        usage += Usage(model_calls=1)
        return Reply(error.status, message=str(error), usage=usage)  # type: ignore[arg-type]
    except TimeoutError:
        usage += Usage(model_calls=1)
        return Reply("timeout", message=no_answer_within(endpoint.name, limit), usage=usage)
    message = f"The model {endpoint.name} gave no usable reply: {wrong}."
    return Reply("parse_error", message=message, usage=usage)


def _complaint(text: str, wrong: str) -> Messages:
    return [
        {"role": "assistant", "content": text[:2000]},
        {
            "role": "user",
            "content": f"That cannot be used: {wrong}. Answer again with only the JSON object.",
        },
    ]
