"""The host's HTTP port, which answers while the host lives and refuses as soon as it is told to stop."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Mapping


class HttpPort:
    """A listening port; `posted` maps paths to what a POST there does."""

    def __init__(self, port: int = 0, posted: Mapping[str, Callable[[], None]] | None = None) -> None:
        paths = dict(posted or {})

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200)

            def do_POST(self) -> None:
                act = paths.get(self.path)
                self._answer(202 if act else 404)
                if act:
                    act()

            def _answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
        self.number: int = self._server.server_address[1]
        serve = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="host-http", daemon=True
        )
        serve.start()

    @property
    def settings(self) -> dict[str, str]:
        """How the worker's environment names the port."""
        return {
            "WEBSITE_HOSTNAME": f"localhost:{self.number}",
            "ASPNETCORE_URLS": f"http://127.0.0.1:{self.number}",
        }

    def close(self) -> None:
        """Refuse from now on; a second call does nothing."""
        with contextlib.suppress(OSError):
            self._server.shutdown()
            self._server.server_close()
