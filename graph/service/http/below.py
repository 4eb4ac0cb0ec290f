"""A service below a path of another server, such as ``https://intranet.example/fair/``."""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class Below:
    """Takes requests with and without the path, as proxies pass it on or cut it off.

    Args:
        app: The application inside, which knows nothing of the path.
        root: The path, without a slash at its end.
    """

    def __init__(self, app: ASGIApp, root: str) -> None:
        self._app = app
        self._root = root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path: str = scope.get("path", "")
        if path == self._root:  # the page's own addresses begin after the slash
            await RedirectResponse(f"{self._root}/")(scope, receive, send)
            return
        if path.startswith(f"{self._root}/"):
            raw: bytes = scope["raw_path"]
            cut = len(self._root)
            # What is outside sees it, too.
            scope.update(path=path[cut:], raw_path=raw[cut:])
        await self._app(scope, receive, send)
