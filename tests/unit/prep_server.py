"""A web server on this machine, as good or as bad as a test needs it."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Site:
    """What is served, and how."""

    files: dict[str, bytes]
    url: str = ""
    cut_after: list[int] = field(default_factory=list)
    """Bytes after which each of the next answers breaks off."""
    errors: list[int] = field(default_factory=list)
    """HTTP codes of the next answers."""
    has_ranges: bool = True
    range_shift: int = 0
    """Added to where a resumed answer begins."""
    redirect: str | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Range of each request so far."""


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[Site]:
    """Serve `files` by name until the block ends."""
    site = Site(files=files)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, site)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()


def _answer(handler: http.server.BaseHTTPRequestHandler, site: Site) -> None:
    wanted = handler.headers.get("Range")
    site.requests.append((handler.path, wanted))
    content = site.files.get(handler.path.lstrip("/"))
    if site.errors or content is None:
        handler.send_error(site.errors.pop(0) if site.errors else 404)
        return
    if site.redirect is not None:
        handler.send_response(302)
        handler.send_header("Location", site.redirect)
        handler.end_headers()
        return
    begin = 0
    if wanted and site.has_ranges:
        begin = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) + site.range_shift  # type: ignore[index]
        if begin >= len(content):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(content)}")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
    else:
        handler.send_response(200)
    body = content[begin:]
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if site.cut_after:
        body = body[: site.cut_after.pop(0)]
        handler.close_connection = True
    handler.wfile.write(body)
