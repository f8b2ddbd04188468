"""Run untrusted chat templates in a separate process: a template is a program, and may use too much time or memory.

    template = open_template(source, "model/chat_template.jinja", eos_token="<|im_end|>")
    text, spans = template.render_with_spans(messages)

error: chats.jsonl:7: the chat template takes too much: more than 10 s of computing, in model/chat_template.jinja

Each of our processes starts at most one such process, for its first template, and keeps it for all rows. The kernel
kills it if a row exceeds a limit, even inside one long step of the interpreter. Our own templates run in this process.
"""

import json
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NoReturn, TypedDict

from nemotron_data.chat.spans import Span
from nemotron_data.chat.template import SHIPPED, ChatTemplate, Conversation
from nemotron_shared.system.errors import UserError

PROGRAM = "nemotron_data.chat.confined"
WALL_SECONDS = 300.0
"""Wall-clock limit. CPU time is the actual limit; this one is for a process that gets no CPU."""
KEPT_VARIABLES = ("TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""The only environment variables the process gets; others may contain tokens."""
ATTEMPTS = 2
REMEDY = "correct the template, or the conversation that it is for"
CPU_SECONDS = 10
MEMORY_BYTES = 1 << 30
LONGEST = 1 << 26
"""Maximum characters of any text."""
ADDED = 1 << 18
"""Characters that a template may add to any conversation. Low, because many texts are kept and tokenized together."""
TIMES = 16
"""How often it may repeat its input; JSON nested in JSON takes six characters for one."""
LARGEST_HEAD = 1 << 26
"""Maximum bytes of the header line."""
TOO_MUCH = "the chat template takes too much: "
LIMITS = {
    resource.RLIMIT_AS: MEMORY_BYTES,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NPROC: 0,
}


class Answer(TypedDict, total=False):
    """Header sent before the text."""

    length: int
    spans: list[list[int]]
    error: list[str | None]


class Overdue(UserError):
    """A template takes too long. Callers stop at this row, because the next rows would take as long."""


def open_template(source: str, label: str, **special_tokens: str | None) -> "Template":
    """Open a template, ready to render.

    Args:
        label: name in error messages: its file, or the model it belongs to.

    Raises:
        UserError: invalid template.
    """
    if source in _ours():
        return ChatTemplate(source, **special_tokens)
    return ConfinedTemplate(source, label, **special_tokens)


@cache
def _ours() -> frozenset[str]:
    """Sources of the templates shipped with this package; these are trusted, however they were named."""
    from nemotron_data.tokenizers.tiny import CHAT_TEMPLATE

    return frozenset([CHAT_TEMPLATE, *(path.read_text(encoding="utf-8") for path in SHIPPED.glob("*.jinja"))])


class ConfinedTemplate:
    """A template in the other process, compiled there on first use."""

    def __init__(self, source: str, label: str, **special_tokens: str | None) -> None:
        self.source, self._label = source, label
        self._known_as = pickle.dumps((source, sorted(special_tokens.items())))
        try:
            self._ask("check")
        except UserError as error:
            said = error.message.removeprefix("chat template, ")
            raise error if said == error.message else UserError(f"{label}: {said}", error.remedy) from error

    def render(self, *conversation: Any, **options: Any) -> str:
        """See `ChatTemplate`."""
        return self._ask("render", conversation, **options)[0]

    def render_with_spans(self, *conversation: Any, **options: Any) -> tuple[str, list[Span]]:
        """See `ChatTemplate`."""
        return self._ask("render_with_spans", conversation, **options)

    def render_with_blocks(self, *conversation: Any, **options: Any) -> tuple[str, list[Span]]:
        """See `ChatTemplate`."""
        return self._ask("render_with_blocks", conversation, **options)

    def render_all(self, conversations: Sequence[Conversation]) -> list[tuple[str, list[Span]] | UserError]:
        """See `ChatTemplate`. One request for all of them takes a sixth of the time of one request each."""
        try:
            found = self._asked("render_with_spans", conversations, {})
        except UserError:  # one of them took too much: find out which one
            return [self._found(one) for one in conversations]
        return [self._read(*one) for one in found]

    def _found(self, conversation: Conversation) -> tuple[str, list[Span]] | UserError:
        try:
            return self.render_with_spans(*conversation)
        except UserError as error:
            return error

    def _ask(self, verb: str, *calls: Any, **options: Any) -> tuple[str, list[Span]]:
        """Result of one call."""
        found = self._read(*self._asked(verb, calls or ((),), options)[0])
        if isinstance(found, UserError):
            raise found
        return found

    def _read(self, answer: Answer, text: str) -> tuple[str, list[Span]] | UserError:
        if "error" not in answer:
            return text, [(start, end) for start, end in answer.get("spans", [])]
        message, remedy = str(answer["error"][0]), answer["error"][1]
        if message.startswith(TOO_MUCH):
            return UserError(f"{message}, in {self._label}", REMEDY)
        return UserError(message, remedy)

    def _asked(self, verb: str, calls: Sequence[Any], options: dict[str, Any]) -> list[tuple[Answer, str]]:
        """Results of all calls. Restarts the process once if something other than a call has ended it.

        Raises:
            UserError: a call ended the process.
        """
        shared = len(pickle.dumps(options))
        most = [most_for(len(pickle.dumps(call)) + shared) for call in calls]
        request, ended = pickle.dumps((verb, calls, options, most), pickle.HIGHEST_PROTOCOL), 0
        for _ in range(ATTEMPTS):
            with _lock:
                process = _process()
                try:
                    return process.ask(self._known_as, request, most)
                except (EOFError, ConnectionError):
                    ended = process.end()
                except TimeoutError:
                    process.end()
                    self._overdue(f"no answer in {WALL_SECONDS:.0f} s")
            if ended == -signal.SIGPROF:
                self._overdue(f"more than {CPU_SECONDS} s of computing")
        why = signal.Signals(-ended).name if ended < 0 else f"exit code {ended}"
        raise UserError(f"{TOO_MUCH}its process ended ({why}), in {self._label}", REMEDY)

    def _overdue(self, what: str) -> NoReturn:
        raise Overdue(f"{TOO_MUCH}{what}, in {self._label}", REMEDY)


Template = ChatTemplate | ConfinedTemplate


class _Process:
    """The rendering process, and the templates it has compiled."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(path) for path in sys.path)  # noqa: PTH100
        with theirs:
            # own process group: we handle Ctrl-C ourselves, and may still need a reply
            program = [sys.executable, "-P", "-m", PROGRAM]
            self._process = subprocess.Popen(program, stdin=theirs.fileno(), env=environment, process_group=0)
        self._socket.settimeout(WALL_SECONDS)
        self._answers = self._socket.makefile("rb", buffering=1 << 16)
        self._known: dict[bytes, int] = {}

    def ask(self, template: bytes, request: bytes, most: Sequence[int]) -> list[tuple[Answer, str]]:
        """Send a request and return the results, one for each call.

        Args:
            most: maximum characters of each result.

        Raises:
            EOFError, ConnectionError: the process has ended.
            TimeoutError: the process does not reply.
        """
        number = self._known.get(template)
        about = pickle.dumps((len(self._known), template) if number is None else (number, None))
        self._known.setdefault(template, len(self._known))
        self._socket.sendall(about + request)
        return [read_answer(self._answers, characters) for characters in most]

    def end(self) -> int:
        """Kill it; returns its exit status if it had already ended."""
        global _here
        _here = None
        self._answers.close()
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(1)
        self._process.kill()
        return self._process.wait()

    def leave_to_parent(self) -> None:
        """After a fork the process is the parent's: close our copy of its pipe so that the parent sees its end."""
        self._answers.close()
        self._socket.close()
        self._process.returncode = 0


_here: _Process | None = None
_lock = threading.Lock()


def _process() -> _Process:
    """The rendering process of this process."""
    global _here
    if _here is None:
        _here = _Process()
    return _here


def _after_fork() -> None:
    global _here, _lock
    _lock = threading.Lock()
    if _here is not None:
        _here.leave_to_parent()
        _here = None


os.register_at_fork(after_in_child=_after_fork)


def most_for(given: int) -> int:
    """Maximum characters of output for this many bytes of input."""
    return min(LONGEST, ADDED + TIMES * given)


def read_answer(stream: Any, most: int) -> tuple[Answer, str]:
    """Read one result, as JSON and UTF-8, so that code that escapes the template's sandbox cannot send anything else.

    Args:
        most: maximum characters of the text.

    Raises:
        EOFError: the process has ended.
    """
    line = stream.readline(LARGEST_HEAD)
    if not line.endswith(b"\n"):
        raise EOFError
    answer: Answer = json.loads(line)
    length = min(answer.get("length", 0), 4 * most)
    text = stream.read(length)
    if len(text) < length:
        raise EOFError
    return answer, text.decode("utf-8", "surrogatepass")


def main() -> None:
    """Be the rendering process: serve requests until the other side closes the pipe.

    It first sets limits that it cannot raise again: memory, no files, no programs. Each call gets a CPU time limit,
    after which SIGPROF ends the process.

    <-  pickled (number of a template, its source and tokens if it is new), (verb, arguments, options, characters)
    ->  {"length": 42, "spans": [[12, 30]]}\\n and as many bytes of text;  {"error": ["...", "its remedy"]}\\n
    """
    with socket.socket(fileno=0) as line:
        requests, answers = line.makefile("rb", 1 << 20), line.makefile("wb", 1 << 20)
        templates: dict[int, ChatTemplate] = {}
        for kind, most in LIMITS.items():
            with suppress(ValueError, OSError):  # macOS has no memory limit, and a lower one may be set already
                resource.setrlimit(kind, (most, most))
        with suppress(EOFError, ConnectionError):
            while True:
                number, new = pickle.load(requests)
                verb, calls, options, most = pickle.load(requests)
                for arguments, characters in zip(calls, most, strict=True):
                    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
                    head, text = _answer(templates, number, new, verb, arguments, options, characters)
                    answers.write(json.dumps({"length": len(text)} | head).encode() + b"\n" + text)
                signal.setitimer(signal.ITIMER_PROF, 0)
                answers.flush()


def _answer(
    templates: dict[int, ChatTemplate],
    number: int,
    new: bytes | None,
    verb: str,
    arguments: Any,
    options: Any,
    most: int,
) -> tuple[Answer, bytes]:
    try:
        if new is not None and number not in templates:
            source, tokens = pickle.loads(new)
            templates[number] = ChatTemplate(source, **dict(tokens))
        made = None if verb == "check" else getattr(templates[number], verb)(*arguments, **options)
        text, spans = made if isinstance(made, tuple) else (made or "", [])
        if len(text) > most:
            return {"error": [f"{TOO_MUCH}a text of {len(text):,} characters, where {most:,} are the most", None]}, b""
        return {"spans": spans}, text.encode("utf-8", "surrogatepass")
    except UserError as error:
        return {"error": [error.message, error.remedy]}, b""
    except MemoryError:
        return {"error": [f"{TOO_MUCH}more than {MEMORY_BYTES >> 30} GiB of memory", None]}, b""


if __name__ == "__main__":
    main()
