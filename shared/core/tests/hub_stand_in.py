"""A hub of our own on the loopback interface: as much of its interface as the real `huggingface_hub` asks for.

    with serving(Hub({"org/set": files}, models={"org/model": files})) as hub:
        subprocess.run(..., env=hub.environment(tmp_path / "home"))

Data sets answer their files at once. Models do as the hub: a file outside of git is a redirect to another address, with
a signature in it, which serves ranges; `gated` ones ask for a token that may read them.
"""

import json
import os
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_neverinamessage"
MAY_READ = "hf_mayreadgatedones"
SIGNATURE = "Signature=neverinafile"
Files = Mapping[str, bytes]


def blob_id(content: bytes) -> str:
    """How git names a content."""
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Model:
    """A repository of a model: its files by commit, and what its branches stand for."""

    commits: dict[str, Files]
    branches: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})


class Hub(ThreadingHTTPServer):
    """The stand-in.

    Attributes:
        served: bytes of large files that were sent.
        asked: the paths of all requests.
        spoiled: names of files that arrive with a wrong byte.
        give_up_after: bytes of large files after which it answers that it is not available.
    """

    daemon_threads = True

    def __init__(
        self,
        repositories: Mapping[str, Files],
        gated: tuple[str, ...] = (),
        models: Mapping[str, Files] | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), HubRequest)
        self.repositories, self.gated = repositories, gated
        self.models = {name: Model({COMMIT: files}) for name, files in (models or {}).items()}
        self.served = 0
        self.revisions: set[str] = set()
        self.asked: list[str] = []
        self.spoiled: set[str] = set()
        self.give_up_after: int | None = None

    def environment(self, home: Path, token: str = TOKEN) -> dict[str, str]:
        """This process's environment with this hub as the hub, and its cache below `home`."""
        kept = {
            key: value for key, value in os.environ.items() if not key.startswith("HF_") and "proxy" not in key.lower()
        }
        ours = {"HF_HOME": str(home), "HF_ENDPOINT": f"http://127.0.0.1:{self.server_port}", "HF_TOKEN": token}
        return {**kept, **ours, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}


@contextmanager
def serving(hub: Hub) -> Generator[Hub]:
    """Answer requests inside the block."""
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


def _large(content: bytes) -> dict:
    """What the hub says besides of a file that it keeps outside of git."""
    return {"lfs": {"oid": sha256(content).hexdigest(), "size": 1, "pointerSize": 1}} if len(content) > 1 << 20 else {}


def _outside_git(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", "tokenizer.json"))


class HubRequest(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._refuse("EntryNotFound")

    def do_GET(self) -> None:
        place = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {place}")
        if place.startswith("/cdn/"):
            self._cdn(place)
            return
        words = place.removeprefix("/api").split("/")
        if words[1] != "datasets":
            self._model(place, words[2:] if words[1] == "models" else words[1:])
            return
        name = "/".join(words[2:4])
        files = self.server.repositories.get(name)
        if files is None:
            self._refuse("RepoNotFound")
        elif "/resolve/" in place:
            self._file(name, files, place.partition("/resolve/")[2])
        elif place.endswith("/auth-check"):
            self._refuse("GatedRepo", 403)
        elif "/tree/" in place:
            revision, _, folder = place.partition("/tree/")[2].partition("/")
            self._json(self._listing(files, folder) if revision in ("main", COMMIT) else [])
        elif "/revision/" in place and place.rpartition("/")[2] not in ("main", COMMIT):
            self._refuse("RevisionNotFound")
        else:
            gated = "manual" if name in self.server.gated else False
            self._json({"id": name, "sha": COMMIT, "private": False, "gated": gated, "tags": [], "siblings": []})

    def _model(self, place: str, words: list[str]) -> None:
        """`words`: organisation, name, and what is asked of them."""
        name, rest = "/".join(words[:2]), words[2:]
        model = self.server.models.get(name)
        may_read = f"Bearer {MAY_READ}" == self.headers.get("Authorization")
        if model is None:
            self._refuse("RepoNotFound", 401)
            return
        gated = name in self.server.gated
        if gated and not may_read and rest[:1] in (["resolve"], ["auth-check"]):
            self._refuse("GatedRepo", 403 if self.headers.get("Authorization") else 401)
            return
        if rest[:1] == ["auth-check"]:
            self._json({})
            return
        asked = rest[1] if len(rest) > 1 else "main"
        commit = model.branches.get(asked, asked)
        if commit not in model.commits:
            self._refuse("RevisionNotFound")
            return
        files = model.commits[commit]
        if rest[:1] == ["resolve"]:
            self._resolve(name, commit, "/".join(rest[2:]), files)
        elif rest[:1] == ["tree"]:
            self._json([self._entry(path, content, "path") for path, content in files.items()])
        else:
            siblings = [self._entry(path, content, "rfilename") for path, content in files.items()]
            about = {"id": name, "sha": commit, "private": False, "tags": [], "siblings": siblings}
            self._json(about | {"gated": "manual" if gated else False})

    def _entry(self, name: str, content: bytes, key: str) -> dict:
        digest = sha256(content).hexdigest()
        ids = {"oid": blob_id(content), "blobId": blob_id(content)}
        lfs = {"lfs": {"oid": digest, "sha256": digest, "size": len(content), "pointerSize": 130}}
        entry = {"type": "file", key: name, "size": len(content), **ids}
        return entry | (lfs if _outside_git(name) else {})

    def _resolve(self, name: str, commit: str, path: str, files: Files) -> None:
        if path not in files:
            self._refuse("EntryNotFound")
            return
        content = files[path]
        commit_of = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not _outside_git(path):
            self._ranged(path, content, {**commit_of, "ETag": f'"{blob_id(content)}"'})
            return
        digest = sha256(content).hexdigest()
        linked = {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(content))}
        # another host, as a redirect within one host means a renamed repository to the library
        host = self.headers["Host"].replace("127.0.0.1", "localhost").replace("hub.invalid", "cdn.invalid")
        where = {"Location": f"http://{host}/cdn/{name}/{commit}/{path}?{SIGNATURE}"}
        self._send(b"", 302, {**commit_of, **linked, **where})

    def _cdn(self, place: str) -> None:
        if SIGNATURE not in self.path:
            self._refuse("AccessDenied", 403)
            return
        organisation, name, commit, path = place.removeprefix("/cdn/").split("/", 3)
        content = self.server.models[f"{organisation}/{name}"].commits[commit][path]
        self._ranged(path, content, {"ETag": '"of-the-store"', "Accept-Ranges": "bytes"}, large=True)

    def _ranged(self, path: str, content: bytes, headers: dict[str, str], large: bool = False) -> None:
        if path in self.server.spoiled:
            content = bytes([content[0] ^ 1]) + content[1:]
        status = 200
        if (span := self.headers.get("Range")) is not None:
            first, last = span.removeprefix("bytes=").split("-")
            end = min(int(last) + 1, len(content)) if last else len(content)
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
            content, status = content[int(first) : end], 206
        if large and self.command == "GET":
            if self.server.give_up_after is not None and self.server.served + len(content) > self.server.give_up_after:
                self._refuse("Unavailable", 503)
                return
            self.server.served += len(content)
        self._send(content, status, headers)

    def _listing(self, files: Files, folder: str) -> list[dict]:
        below = {name: content for name, content in files.items() if name.startswith(folder)}
        recursive = "recursive=true" in self.path.lower()
        depth = len([part for part in folder.split("/") if part])
        folders = sorted({"/".join(name.split("/")[: depth + 1]) for name in below if name.count("/") > depth})
        inside = [{"type": "directory", "path": name, "oid": "0", "size": 0} for name in folders]
        return inside + [
            {"type": "file", "path": name, "oid": sha1(content).hexdigest(), "size": len(content), **_large(content)}
            for name, content in below.items()
            if recursive or name.count("/") == depth
        ]

    def _file(self, name: str, files: Files, place: str) -> None:
        revision, _, path = place.partition("/")
        self.server.revisions.add(revision)
        if path not in files:
            self._refuse("EntryNotFound")
            return
        content, status = files[path], 200
        headers = {"ETag": f'"{sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if (span := self.headers.get("Range")) is not None:
            first, last = span.removeprefix("bytes=").split("-")
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[int(first) : int(last) + 1], 206
        if path.startswith("data/") and self.command == "GET":
            self.server.served += len(content)
        self._send(content, status, headers)

    def _json(self, value: object) -> None:
        self._send(json.dumps(value).encode(), 200, {"Content-Type": "application/json"})

    def _refuse(self, code: str, status: int = 404) -> None:
        self._send(b"{}", status, {"X-Error-Code": code, "X-Error-Message": code})

    def _send(self, content: bytes, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
