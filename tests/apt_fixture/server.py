"""Serves the repositories over HTTP, on this machine's loopback addresses only."""

from __future__ import annotations

import contextlib
import functools
import http.server
import ipaddress
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images.errors import UserError
from tests.apt_fixture.build import Fixture, load


@dataclass(frozen=True)
class Served:
    """A running server. ``requests`` are the paths that were asked for with the status of the answer."""

    url: str
    fixture: Fixture
    requests: list[tuple[str, int]] = field(default_factory=list)

    def uri(self, path: str) -> str:
        """The URI of a repository, for a source line or ``URIs:``; the suite is ``/``."""
        if path not in self.fixture.repositories:
            raise UserError(
                f"no repository {path}", hint=f"there are: {', '.join(self.fixture.repositories)}"
            )
        return f"{self.url}/{path}"


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds that a connection without a request lives

    def __init__(self, *args: Any, requests: list[tuple[str, int]], **options: Any) -> None:
        self._requests = requests
        super().__init__(*args, **options)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        self._requests.append((self.path, int(code)))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a test's output is not the place."""


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up (apt does) is no error of ours."""


@contextlib.contextmanager
def serve(root: Path, *, address: str = "127.0.0.1", port: int = 0) -> Iterator[Served]:
    """Serves the fixture in ``root`` while the context lasts; port 0 is one that is free.

    ``address`` is within 127.0.0.0/8: the packages are nothing to hand out. Raises ``UserError`` for another
    one, a port that is taken, and a folder without a fixture.
    """
    try:
        allowed = ipaddress.ip_address(address) in ipaddress.ip_network("127.0.0.0/8")
    except ValueError:
        allowed = False
    if not allowed:
        raise UserError(f"{address} is not within 127.0.0.0/8", hint="the fixture is for this machine only")
    served: list[tuple[str, int]] = []
    fixture = load(root)
    handler = functools.partial(_Handler, directory=str(root), requests=served)
    try:
        server = _Server((address, port), handler)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen on {address}:{port}: {error}", hint="port 0 takes a free one"
        ) from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield Served(f"http://{address}:{server.server_address[1]}", fixture, served)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
