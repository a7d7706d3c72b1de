"""A span for each request of a server, named by its route and never by an id."""

from avatar_v.base.traces import span
from avatar_v.web.guard import App, Message, Receive, Send

QUIET = ("/health/live", "/health/ready", "/metrics")
"""What machines ask every few seconds."""


class Traced:
    """An ASGI middleware within the application, whose routes it sees."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in QUIET:
            return await self.app(scope, receive, send)
        method = scope.get("method", "WebSocket")
        with span(method, method=method) as current:

            async def sent(message: Message) -> None:
                if current is not None and "status" in message:
                    current.set_attribute("http.response.status_code", message["status"])
                await send(message)

            try:
                await self.app(scope, receive, sent)
            finally:
                route = scope.get("route")
                if current is not None and route is not None:
                    current.update_name(f"{method} {route.path}")
