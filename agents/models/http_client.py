"""The HTTP client for models that speak OpenAI's protocol."""

from __future__ import annotations

from typing import Any

# They describe how the body was sent; by now it is decoded.
_OF_THE_BODY = ("content-encoding", "content-length", "transfer-encoding")


def new_http_client(*, trust_env: bool) -> Any:
    """Return a client that follows no redirects, and removes the key from error responses.

    A redirect could send the documents in a request to a server that nobody configured. And other
    code sees an error response as it came: LangChain's callbacks record it, and so does LangSmith.

    Args:
        trust_env: Whether to use proxies and certificates of the environment.

    Returns:
        An ``AsyncClient`` of httpx, or of the library that the installed ``openai`` uses instead.
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
    """Return the key in a request; empty if it is a placeholder."""
    key = request.headers.get("api-key") or request.headers.get("authorization") or ""
    key = key.removeprefix("Bearer ").strip()
    return key if len(key) >= 6 else ""
