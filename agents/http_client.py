"""The HTTP client of models that speak OpenAI's protocol."""

from __future__ import annotations

from typing import Any

__all__ = ["new_http_client"]

# They say how the body was sent, which is decoded by now.
_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")


def new_http_client(*, trust_env: bool) -> Any:
    """Return a client that stays with its server, and takes the key out of refusals.

    A server that sends requests on to another one would have them sent, with the documents in them,
    to where nobody configured. Others than we see a refusal too: LangChain's callbacks, and with
    them LangSmith, record it as it came.

    Args:
        trust_env: Whether proxies and certificates of the environment hold.

    Returns:
        An ``AsyncClient`` of httpx, or of what the installed ``openai`` has in its place.
    """
    import openai

    base: Any = openai.DefaultAsyncHttpxClient

    class Client(base):  # type: ignore[misc]
        async def send(self, request: Any, **options: Any) -> Any:
            response = await super().send(request, **options)
            key = _key_of(request)
            if response.status_code < 400 or not key:
                return response
            body = (await response.aread()).replace(key.encode(), "…".encode())
            headers = [
                (name, value.replace(key, "..."))
                for name, value in response.headers.multi_items()
                if name not in _OF_THE_BODY
            ]
            return type(response)(
                response.status_code,
                headers=headers,
                content=body,
                request=request,
                extensions=response.extensions,
                history=response.history,
            )

    return Client(trust_env=trust_env, follow_redirects=False)


def _key_of(request: Any) -> str:
    """Return the key that a request is sent with; empty for a placeholder."""
    key = request.headers.get("api-key") or request.headers.get("authorization") or ""
    key = key.removeprefix("Bearer ").strip()
    return key if len(key) >= 6 else ""
