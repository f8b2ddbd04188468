"""Serve an environment with NeMo-Gym's routes and session cookies, but without its packages.

    python -m nemotron_data.gym.small_server environments/drawers 0      prints `ready 12001 find open`

Tools (the module has TOOLS):                          Turns:
    POST /seed_session  row      -> {}                     POST /reset  row             -> {"observation", "info"}
    POST /find          {"name"} -> {"box": "8"}           POST /step   row, response   -> {"observation", "reward",
    POST /verify        row, response                                                      "terminated", "truncated",
                                 -> row, response,                                         "info"}
                                    "reward", ...

The logic is a class Episode, with one object per episode:

    class Episode:
        def __init__(self, row): ...
        def find(self, name: str) -> dict: ...                 a tool; its arguments are checked by their annotations
        def verify(self, answer: str, output: list) -> dict    {"reward": 1.0, ...}, from the last message and all items
        def reset(self) -> str | None                          the first message, if any
        def step(self, text: str) -> dict                      {"reward", "terminated", "observation", "info"}
"""

import importlib.util
import inspect
import json
import os
import secrets
import sys
import threading
import traceback
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TextIO

from pydantic import BaseModel, Field, ValidationError, create_model

COOKIE = "session"
MOST_SESSIONS = 10_000
"""Maximum number of open episodes; the oldest are dropped, because clients may go away."""


class BadRequest(Exception):
    """Args: status and body."""


class Environment:
    """The episodes of one environment.

    Args:
        logic: a module with Episode, and TOOLS if models call tools.
    """

    def __init__(self, logic: ModuleType) -> None:
        self._new, self._file = logic.Episode, logic.__file__
        tools = [tool["name"] for tool in getattr(logic, "TOOLS", ())]
        self._arguments = {name: _arguments(getattr(self._new, name)) for name in tools}
        self._own = {"/verify", "/seed_session"} if tools else {"/reset", "/step"}
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def tools(self) -> list[str]:
        """Names of the tools."""
        return list(self._arguments)

    def answer(self, path: str, body: Any, session: str) -> Any:
        """The answer to a POST; raises `BadRequest`."""
        name = path.removeprefix("/")
        if path not in self._own and name not in self._arguments:
            known = ", ".join(sorted(self._own | {f"/{one}" for one in self._arguments}))
            raise BadRequest(404, {"detail": f"Not Found; this environment has {known}"})
        if not isinstance(body, dict):
            raise BadRequest(422, {"detail": [{"loc": ["body"], "msg": "Input should be a valid dictionary"}]})
        if path in ("/seed_session", "/reset"):
            episode = self._new(body)
            with self._lock:
                self._open[session] = episode
                while len(self._open) > MOST_SESSIONS:
                    self._open.popitem(last=False)
            return {} if path == "/seed_session" else {"observation": _opening(episode.reset()), "info": {}}
        with self._lock:
            episode = self._open.get(session)
        if episode is None:
            raise BadRequest(400, {"detail": "no such episode: it begins with /seed_session or /reset"})
        if name in self._arguments:
            try:
                given = self._arguments[name].model_validate(body)
            except ValidationError as error:
                detail = [
                    {"type": one["type"], "loc": ["body", *one["loc"]], "msg": one["msg"]} for one in error.errors()
                ]
                raise BadRequest(422, {"detail": detail}) from error
            fields = type(given).model_fields.items()
            return getattr(episode, name)(**{str(field.alias): getattr(given, key) for key, field in fields})
        output = (body.get("response") or {}).get("output")
        if not isinstance(output, list):
            raise BadRequest(422, {"detail": [{"loc": ["body", "response", "output"], "msg": "Field required"}]})
        if path == "/verify":
            self._forget(session)
            return body | _returned("verify", episode.verify(said(output), output), "reward")
        step = {"observation": None, "truncated": False, "info": {}}
        step |= _returned("step", episode.step(said(output)), "reward", "terminated")
        if step["terminated"] or step["truncated"]:
            self._forget(session)
        return step

    def place_of(self, error: BaseException) -> str:
        """The line of the environment's own file on which it failed, as `drawers.py:41: `; empty if it is elsewhere."""
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == self._file]
        return f"{Path(str(self._file)).name}:{lines[-1]}: " if lines else ""

    def _forget(self, session: str) -> None:
        with self._lock:
            self._open.pop(session, None)


def _returned(method: str, given: Any, *keys: str) -> dict[str, Any]:
    """What a method of an Episode returned, if it has these keys."""
    if isinstance(given, dict) and given.keys() >= set(keys):
        return given
    wanted = ", ".join(f'"{key}": ...' for key in keys)
    raise TypeError(f"{method} must return {{{wanted}}}, and returned {str(given)[:100]}")


def _opening(given: Any) -> str | None:
    """What reset returned, if it is a message or none."""
    if given is None or isinstance(given, str):
        return given
    raise TypeError(f"reset must return a text or None, and returned {str(given)[:100]}")


def said(output: list[dict[str, Any]]) -> str:
    """Text of the last message in a response; empty without one."""
    for item in reversed(output):
        if item.get("type") == "message" and item.get("role") == "assistant":
            return "".join(part.get("text", "") for part in item["content"] if part.get("type") == "output_text")
    return ""


def _arguments(tool: Any) -> type[BaseModel]:
    """A tool's arguments as FastAPI would read them from its annotations."""
    parameters = list(inspect.signature(tool, eval_str=True).parameters.values())[1:]
    for one in parameters:
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) or one.annotation is one.empty:
            raise TypeError(
                f"tool '{tool.__name__}': name each parameter and annotate it (number: int), unlike '{one}'"
            )
    fields: dict[str, Any] = {  # by aliases, because pydantic keeps some names for itself
        f"argument_{number}": (
            Annotated[one.annotation, Field(alias=one.name)],
            ... if one.default is one.empty else one.default,
        )
        for number, one in enumerate(parameters)
    }
    return create_model(tool.__name__, **fields)


def load_logic(folder: Path) -> ModuleType:
    """Load an environment's module, which is named like its folder; raises what its code raises."""
    name = folder.name
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as error:  # would end the caller without a word
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise RuntimeError(f"{Path(at.filename).name}:{at.lineno}: SystemExit: {error}") from error
    return module


def serve(environment: Environment, port: int, output: TextIO) -> None:
    """Answer until the process ends. Port 0 takes a free one; `output` gets `ready PORT TOOL ...` when it listens."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept
        wbufsize = -1  # head and body in one write, or the client would wait for the second packet
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._send(200, {"status": "ok"}, "")

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            cookies = dict(one.strip().partition("=")[::2] for one in self.headers.get("Cookie", "").split(";"))
            session = cookies.get(COOKIE) or secrets.token_hex(16)
            try:
                asked = json.loads(content)
            except ValueError as error:
                self._send(422, {"detail": [{"loc": ["body"], "msg": f"JSON decode error: {error}"}]}, session)
                return
            try:
                self._send(200, environment.answer(self.path, asked, session), session)
            except BadRequest as error:
                self._send(*error.args, session)
            except (Exception, SystemExit) as error:  # its code may fail in any way, or answer what is not JSON
                print(f"{self.path}: {traceback.format_exc()}", file=sys.stderr, flush=True)
                place = environment.place_of(error)
                self._send(500, {"detail": f"{place}{type(error).__name__}: {error}"}, session)

        def _send(self, status: int, answer: Any, session: str) -> None:
            # of a reward, the client says which value is not finite
            says_number = self.path in ("/verify", "/step")
            text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), allow_nan=says_number)  # as FastAPI
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if session:
                self.send_header("Set-Cookie", f"{COOKIE}={session}; path=/; httponly")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: a line for each request would fill the log."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    try:
        listening = Server(("127.0.0.1", port), Handler)
    except OSError as error:
        raise SystemExit(f"port {port}: {error.strerror}") from error
    with listening as server:
        print("ready", server.server_address[1], *environment.tools, file=output, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints goes to the log: nobody reads it here, and a full pipe would stop it
    serve(Environment(load_logic(Path(sys.argv[1]))), int(sys.argv[2]), output)
