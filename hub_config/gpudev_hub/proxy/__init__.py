"""An HTTP and websocket reverse proxy for one machine, run inside the hub.

Requests flow: local (listens, JupyterHub's interface) -> forward (finds the route) -> exchange (HTTP) or
tunnel (websockets), over connections from upstream, by the pure rules in routes, headers and pages.
"""

from .local import LocalProxy

__all__ = ["LocalProxy"]
