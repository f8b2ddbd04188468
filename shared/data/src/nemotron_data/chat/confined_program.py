"""The process that renders untrusted templates; see `confined`, which starts it and talks to it.

It first sets limits that it cannot raise again: memory, no files, no programs. Each call gets a CPU time limit, after
which SIGPROF ends the process.

    <-  pickled (number of a template, its source and tokens if it is new), (verb, arguments, options, characters)
    ->  {"length": 42, "spans": [[12, 30]]}\\n and as many bytes of text;  {"error": "...", "remedy": "..."}\\n
"""

import json
import pickle
import resource
import signal
import socket
from contextlib import suppress
from typing import Any, TypedDict

from nemotron_data.chat.template import ChatTemplate
from nemotron_shared.errors import UserError

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
    error: str
    remedy: str | None


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
    """Serve requests until the other side closes the pipe."""
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
            return {"error": f"{TOO_MUCH}a text of {len(text):,} characters, where {most:,} are the most"}, b""
        return {"spans": spans}, text.encode("utf-8", "surrogatepass")
    except UserError as error:
        return {"error": error.message, "remedy": error.remedy}, b""
    except MemoryError:
        return {"error": f"{TOO_MUCH}more than {MEMORY_BYTES >> 30} GiB of memory"}, b""


if __name__ == "__main__":
    main()
