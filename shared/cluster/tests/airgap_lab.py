"""An index of packages on the loopback interface, and a workspace whose lock was made from it.

with serving(Index({"alpha-1.0-py3-none-any.whl": wheel("alpha", "1.0")})) as index:
    workspace(tmp_path / "root", index, ["alpha"])
"""

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from nemotron_cluster.airgap.packages import find_uv

HOST = "index.invalid"
"""What a test of proxies calls the index: no resolver knows it, so only the proxy finds it."""
BACKEND = """
import os, subprocess, zipfile
def build_wheel(folder, settings=None, metadata=None):
    name, version = {name!r}, {version!r}
    nvcc = os.environ.get("PYTORCH_NVCC")
    if {compiled}:
        assert os.environ["MAMBA_FORCE_BUILD"] == os.environ["CAUSAL_CONV1D_FORCE_BUILD"] == "TRUE"
        flags = [word for number in (75, 80, 90, 120)
                 for word in ("-gencode", f"arch=compute_{{number}},code=sm_{{number}}")]
        subprocess.run([nvcc or os.path.join(os.environ["CUDA_HOME"], "bin", "nvcc"), *flags, "-O3"], check=True)
    file = f"{{name}}-{{version}}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, file), "w") as wheel:
        wheel.writestr(f"{{name}}.py", "")
        info = f"{{name}}-{{version}}.dist-info"
        wheel.writestr(f"{{info}}/METADATA", f"Metadata-Version: 2.2\\nName: {{name}}\\nVersion: {{version}}\\n")
        wheel.writestr(f"{{info}}/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(f"{{info}}/RECORD", "")
    return file
"""


def wheel(name: str, version: str, code: str = "", padding: int = 0) -> bytes:
    """A wheel with one module, and as many bytes that do not compress as asked for."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code.encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    if padding:
        files[f"{name}_data.bin"] = hashlib.shake_128(name.encode()).digest(padding)
    record = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()},{len(content)}"
        for path, content in files.items()
    ]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return buffer.getvalue()


def source(name: str, version: str, *, compiled: bool = False) -> bytes:
    """A source distribution that builds itself, without a tool from the index."""
    module = name.replace("-", "_")
    files = {
        "PKG-INFO": f"Metadata-Version: 2.2\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "backend.py": BACKEND.format(name=module, version=version, compiled=compiled),
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{module}-{version}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


class Index(ThreadingHTTPServer):
    """The index, which is a proxy for itself as well.

    Attributes:
        asked: method, address and Range of every request.
        unsized: files of which the index does not tell the size, and so the lock does not either.
        spoiled: files that arrive with a wrong byte.
        held: a file of which only the first bytes come, until `go` is set.
    """

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.files = dict(files)
        self.asked: list[tuple[str, str, str | None]] = []
        self.unsized: set[str] = set()
        self.spoiled: set[str] = set()
        self.held: tuple[str, int] | None = None
        self.go = threading.Event()
        self.host = f"127.0.0.1:{self.server_port}"

    @property
    def served(self) -> set[str]:
        """Files of which content was asked for."""
        places = {address.rpartition("/files/")[2] for method, address, _ in self.asked if method == "GET"}
        return places & set(self.files)

    def of(self, name: str) -> list[tuple[str, str | None]]:
        """The requests for one file."""
        return [(method, span) for method, address, span in self.asked if address.endswith(f"/files/{name}")]


@contextmanager
def serving(index: Index) -> Generator[Index]:
    """Answer inside the block."""
    threading.Thread(target=index.serve_forever, daemon=True).start()
    try:
        yield index
    finally:
        index.go.set()
        index.shutdown()
        index.server_close()


class _Request(BaseHTTPRequestHandler):
    server: Index
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_CONNECT(self) -> None:
        self.server.asked.append(("CONNECT", self.path, None))
        self._send(403, b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.asked.append((self.command, self.path, self.headers.get("Range")))
        place = urlsplit(self.path).path
        name = place.strip("/").rpartition("/")[2]
        if place.startswith("/simple/"):
            self._page(name)
        elif name in self.server.files:
            self._file(name)
        else:
            self._send(404, b"")

    def _page(self, package: str) -> None:
        found = []
        for name, content in self.server.files.items():
            if name.replace("_", "-").startswith(f"{package}-"):
                digest = {"sha256": hashlib.sha256(content).hexdigest()}
                address = f"http://{self.server.host}/files/{name}"
                size = {} if name in self.server.unsized else {"size": len(content)}
                found.append({"filename": name, "url": address, "hashes": digest} | size)
        page = {"meta": {"api-version": "1.0"}, "name": package, "files": found}
        self._send(200, json.dumps(page).encode(), {"Content-Type": "application/vnd.pypi.simple.v1+json"})

    def _file(self, name: str) -> None:
        content, status, headers = self.server.files[name], 200, {"Accept-Ranges": "bytes"}
        if name in self.server.spoiled:
            content = content[:-1] + bytes([content[-1] ^ 1])
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            start = int(first) if first else len(content) - int(last)
            end = int(last) + 1 if first and last else len(content)
            if start >= len(content):
                self._send(416, b"")
                return
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            content, status = content[start:end], 206
        if self.server.held and self.server.held[0] == name and not self.server.go.is_set() and self.command == "GET":
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: self.server.held[1]])
            self.wfile.flush()
            self.server.go.wait()
            return
        self._send(status, content, headers)

    def _send(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def workspace(root: Path, index: Index, needs: Sequence[str], environment: Mapping[str, str]) -> Path:
    """A workspace with one member, `tiny-member`, and its lock."""
    member = root / "member"
    (member / "src" / "tiny_member").mkdir(parents=True)
    (member / "src" / "tiny_member" / "__init__.py").write_text("")
    (root / "pyproject.toml").write_text(
        '[project]\nname = "root"\nversion = "0"\nrequires-python = ">=3.11"\n'
        '[tool.uv]\npackage = false\n[tool.uv.workspace]\nmembers = ["member"]\n'
    )
    (member / "pyproject.toml").write_text(
        '[project]\nname = "tiny-member"\nversion = "0.3"\nrequires-python = ">=3.11"\n'
        f"dependencies = {json.dumps([*needs])}\n"
        '[build-system]\nrequires = ["uv_build>=0.9,<0.14"]\nbuild-backend = "uv_build"\n'
    )
    subprocess.run([find_uv(), "lock", "--quiet"], cwd=root, env=environment, check=True)
    return root
