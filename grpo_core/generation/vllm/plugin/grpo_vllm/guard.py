"""A key on every route of the server: vLLM's own `--api-key` guards `/v1` alone, and a stranger could load other weights."""

import hmac
import os
from collections.abc import Awaitable, Callable
from typing import Any

KEY_VARIABLE = "GRPO_VLLM_KEY"
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
REFUSAL = b'{"error": "this server answers only with its key: Authorization: Bearer <key>"}'


class RequireKey:
    """ASGI middleware for `--middleware grpo_vllm.guard.RequireKey`."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        """Guard `app` with the key in the environment.

        Raises:
            KeyError: there is none, so that a server without one does not start.
        """
        self._app = app
        self._expected = f"Bearer {os.environ[KEY_VARIABLE]}".encode()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer 401 to a request without the key, and refuse a web socket; pass on what has it."""
        if scope["type"] == "lifespan" or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": REFUSAL})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _has_key(self, scope: Message) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)
