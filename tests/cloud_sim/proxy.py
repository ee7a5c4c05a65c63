"""A TLS-terminating HTTP proxy that answers in the place of the hosts it is asked for.

A client reaches it by ``HTTPS_PROXY`` and trusts its CA. Each host is served by a WSGI application, chosen
by pattern; a host that nobody serves is refused. The proxy never opens a connection to anywhere.
"""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import io
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Environ = dict[str, Any]
Application = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


class Authority:
    """A certificate authority of its own, made anew each time; certificates and keys are in ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Cloud simulation (not a real CA)")])
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        self._certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.bundle = folder / "ca.pem"
        self.bundle.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        issuer = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            # The client's clock may be a little behind.
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=30))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        )

    def context(self, host: str) -> ssl.SSLContext:
        """The server side of TLS for ``host``; its certificate is made at the first call."""
        with self._lock:
            if host not in self._contexts:
                self._contexts[host] = self._make_context(host)
            return self._contexts[host]

    def _make_context(self, host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        # A common name has room for 64 characters; what clients read is the alternative name.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])])
        usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
        leaf = (
            self._builder(subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        file = self._folder / f"leaf-{len(self._contexts)}.pem"
        file.touch(mode=0o600)
        file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            + leaf.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


class Proxy:
    """Listens on 127.0.0.1, any free port, in the network namespace of the thread that makes it.

    ``routes``: host patterns (``*.example.com``) and their applications; the first that matches serves.
    """

    def __init__(self, folder: Path, routes: Mapping[str, Application]) -> None:
        self.authority = Authority(folder)
        self.refused: list[str] = []  # hosts that were asked for and that nobody serves
        self._server = _Server(("127.0.0.1", 0), self.authority, dict(routes), self.refused)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """What clients set as their HTTPS proxy."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Breaks all connections; from now on new ones are refused. Again is no error."""
        self._server.shutdown()
        self._server.server_close()
        self._server.break_connections()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        authority: Authority,
        routes: dict[str, Application],
        refused: list[str],
    ) -> None:
        self.authority = authority
        self.routes = routes
        self.refused = refused
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def application(self, host: str) -> Application | None:
        found = (app for pattern, app in self.routes.items() if fnmatch.fnmatch(host, pattern))
        return next(found, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.forget(request)
        super().shutdown_request(request)

    def replace(self, plain: socket.socket, tls: ssl.SSLSocket) -> None:
        """TLS has taken over the connection: ``plain`` has no file descriptor any more."""
        with self._lock:
            self._connections.discard(plain)
            self._connections.add(tls)

    def forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def break_connections(self) -> None:
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    # Not SSLSocket's own, which pulls the rug from under the thread that reads.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or does not trust our CA, is not our error: nothing is printed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    host = ""
    application: Application | None = None

    def handle(self) -> None:
        # A connection that breaks is the client's business, or ours (``Proxy.close``).
        with contextlib.suppress(OSError, ssl.SSLError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()
        self.server.forget(self.connection)
        self.connection.close()

    def do_CONNECT(self) -> None:
        host, _, port = self.path.lower().rpartition(":")
        self.application = self.server.application(host) if port == "443" else None
        if self.application is None:
            self.server.refused.append(self.path)
            self.answer(502, [], f"{self.path} is not served here, and nothing is forwarded\n".encode())
            self.close_connection = True
            return
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.wfile.flush()
        tls = self.server.authority.context(host).wrap_socket(self.connection, server_side=True)
        self.server.replace(self.connection, tls)
        tls.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.host = host
        self.connection = tls
        self.rfile = tls.makefile("rb")
        self.wfile = tls.makefile("wb")
        self.close_connection = False

    def do_any(self) -> None:
        body = self.body()
        if self.application is None:  # an unencrypted request, which a client has no reason to send
            self.server.refused.append(self.path)
            self.answer(502, [], b"only HTTPS is served here, and nothing is forwarded\n")
            return
        started: list[tuple[int, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], _exc: Any = None) -> None:
            started.append((int(status.split()[0]), headers))

        result = self.application(self.environ(body), start_response)
        try:
            content = b"".join(result)
            self.answer(*started[-1], content)
        finally:
            if close := getattr(result, "close", None):
                close()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_any

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(chunks)

    def environ(self, body: bytes) -> Environ:
        """The request by PEP 3333."""
        parts = urlsplit(self.path)
        environ: Environ = {
            "REQUEST_METHOD": self.command,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote(parts.path, "iso-8859-1"),
            "RAW_URI": self.path,
            "QUERY_STRING": parts.query,
            "SERVER_NAME": self.host,
            "SERVER_PORT": "443",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "https",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": io.StringIO(),
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in self.headers.items():
            key = name.upper().replace("-", "_")
            environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
        environ["CONTENT_LENGTH"] = str(len(body))
        return environ

    def answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()
