"""A hub that answers on this machine: the few routes that listing and downloading use, over repositories laid out as a
cache. It can be told to limit the rate."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub:
    """What the server serves, and what it was asked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        self.busy: list[tuple[int, dict[str, str]]] = []  # answers to give first: status and headers
        self.endpoint = ""

    def repository(self, repo: str) -> Path:
        return self.root / f"models--{repo.replace('/', '--')}"

    def refs(self, repo: str) -> dict[str, str]:
        root = self.repository(repo) / "refs"
        return {p.relative_to(root).as_posix(): p.read_text() for p in sorted(root.rglob("*")) if p.is_file()}

    def commit(self, repo: str, revision: str) -> str:
        return self.refs(repo).get(revision, revision)


@contextmanager
def serve_hub(root: Path) -> Iterator[Hub]:
    """Serve repositories laid out as `tests.hub_cache` writes them."""
    hub = Hub(root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            if path.startswith("/api/") and not path.startswith("/api/models/"):
                return self.answer(404, {})  # what the client asks for its own purposes, once a day
            hub.asked.append(path)
            if hub.busy:
                status, headers = hub.busy.pop(0)
                return self.answer(status, {"error": "rate limited"}, headers)
            parts = path.strip("/").split("/")
            if parts[0] == "api":
                return self.api("/".join(parts[2:4]), parts[4:])
            repo, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
            commit = hub.commit(repo, revision)
            file = hub.repository(repo) / "snapshots" / commit / name
            if not file.is_file():
                return self.answer(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound"})
            content = file.read_bytes()
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}
            self.send(200, content, headers)

        do_HEAD = do_GET

        def api(self, repo: str, rest: list[str]) -> None:
            if not hub.repository(repo).is_dir():
                return self.answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            if rest == ["refs"]:
                branches = [{"name": n, "ref": f"refs/heads/{n}", "targetCommit": c} for n, c in hub.refs(repo).items()]
                return self.answer(200, {"branches": branches, "tags": [], "converts": []})
            commit = hub.commit(repo, rest[1]) if len(rest) > 1 else hub.refs(repo)["main"]
            snapshot = hub.repository(repo) / "snapshots" / commit
            if not snapshot.is_dir():
                return self.answer(404, {"error": "Revision not found"}, {"X-Error-Code": "RevisionNotFound"})
            files = [
                (p.name, p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest())
                for p in sorted(snapshot.iterdir())
            ]
            if rest[0] == "tree":
                found: Any = [{"type": "file", "path": n, "size": s, "oid": d} for n, s, d in files]
            else:
                siblings = [{"rfilename": n, "size": s, "blobId": d} for n, s, d in files]
                found = {"id": repo, "sha": commit, "siblings": siblings}
            self.answer(200, found)

        def answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
            self.send(status, json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})})

        def send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
