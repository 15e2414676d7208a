"""Optuna's dashboard on a sweep's own storage, served to this machine alone.

In this process rather than by its own program: an address of a database, password and all, would
stand on that program's command line for every user to read, and it answers whatever name a page
asks for it by (DNS rebinding), though its interface can delete studies.
"""

import re
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from optuna.storages import BaseStorage

from arch_search.errors import UsageError
from arch_search.extras import how_to_install

_HOSTS = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


def serve_study(storage: BaseStorage, port: int) -> None:
    """Serve it until Ctrl-C.

    Raises:
        UsageError: optuna-dashboard is not installed, or the port is taken.
    """
    try:
        from optuna_dashboard import wsgi  # an extra
    except ImportError:
        raise UsageError(f"optuna-dashboard is not installed; {how_to_install('ui')}") from None
    try:
        server = _Server(("127.0.0.1", port), _Quiet)
    except OSError as error:
        raise UsageError(f"port {port}: {error.strerror}; choose another with --port") from None
    with server:
        server.set_app(_of_this_machine(wsgi(storage)))
        print(f"http://127.0.0.1:{port}  (Ctrl-C stops it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def _of_this_machine(app: Any) -> Application:
    """The application, for requests that name this machine."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if _HOSTS.fullmatch(environ.get("HTTP_HOST", "")):
            return app(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"Ask for it as 127.0.0.1."]

    return answer
