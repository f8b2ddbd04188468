"""`nemotron chat`: talk to a model in the terminal.

    nemotron chat                                  the newest model of the store
    nemotron chat sft:v2 --system "Answer briefly."
    echo "What is 2+2?" | nemotron chat            only the answer, on standard output

Each line is a message; pasted or piped text is one message, and so is text between two lines of three double quotes.
Ctrl-C stops an answer, Ctrl-D ends. /help lists the commands.
"""

import json
import os
import select
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

import click

from nemotron_serving.options import Chosen, model_options, sampling_options
from nemotron_shared.system.atomic import output_file, write_text
from nemotron_shared.system.console import say, tell
from nemotron_shared.system.errors import UserError, did_you_mean, printable
from nemotron_shared.system.process import as_typed

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
BLOCK = '"""'
PASTE_SECONDS = 0.05
HELP = {
    "/system TEXT": "set the system message (without TEXT: none)",
    "/reset": "forget the conversation",
    "/undo": "forget the last question and its answer",
    "/save FILE": "write the conversation as one JSON line, which sft and generate read",
    "/help": "this list",
    "/exit": "end; so does Ctrl-D",
}


@click.command("chat", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@model_options(default_newest=True)
@sampling_options(most_tokens=1024)
@click.option("--system", metavar="TEXT", help="the system message")
@click.option("--think", type=click.Choice(["show", "hide", "off"]), help="thoughts: show them dimmed, hide them, or "
              "ask the model for none (default: show in a terminal, hide in a pipe)")  # fmt: skip
def command(
    chosen: Chosen, temperature: float | None, top_p: float | None, max_tokens: int, seed: int | None,
    system: str | None, think: str | None,
) -> int:  # fmt: skip
    """Run the command; see the module docstring."""
    terminal = sys.stdin.isatty()
    piped = "" if terminal else read_pipe()
    if not terminal and not piped.strip():
        raise UserError("standard input holds no question", "pipe one in, or start it in a terminal")
    with chosen.ready(size=1) as model:
        if not model.chats:
            say(f"[{model.name}] was not taught to chat: it continues your text")
        sampling = model.sampling(max_tokens, temperature, top_p, seed)
        talk = Talk(model, sampling, think or ("show" if terminal else "hide"), sys.stdout, system)
        if not terminal:
            return 0 if talk.ask(piped.rstrip("\n")) else 130
        say("/help lists the commands")
        with suppress(ImportError):
            import readline  # noqa: F401 - importing it gives input() line editing and history
        for text in messages():
            if not text.startswith("/"):
                talk.ask(text)
            elif talk.obey(text):
                break
    return 0


def read_pipe() -> str:
    """Read all of standard input.

    Raises:
        UserError: not UTF-8.
    """
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        what = f"standard input: not a text in UTF-8: {error}"
        raise UserError(what, "convert it, such as with: iconv -f latin1 -t utf-8") from error


def messages() -> Iterator[str]:
    """Yield typed messages until the end of the input."""
    while True:
        try:
            text = read_message()
        except EOFError:
            tell()
            return
        except KeyboardInterrupt:
            tell("\nCtrl-D or /exit ends")
            continue
        if text.strip():
            yield text


def read_message() -> str:
    """A line with all lines pasted together with it, or the text between two lines of quotes."""
    lines = [input("> ")]
    if lines[0].strip() == BLOCK:
        lines = []
        while (line := input("… ")).strip() != BLOCK:
            lines.append(line)
    else:
        while select.select([sys.stdin], [], [], PASTE_SECONDS)[0]:
            lines.append(input())
    return "\n".join(lines)


@dataclass
class Talk:
    """A conversation and the place where it is shown."""

    model: Any
    sampling: Any
    think: str
    out: TextIO
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    told: str | None = None
    """The system message for which the user was warned that the model does not see it."""

    def ask(self, text: str) -> bool:
        """Stream the answer; returns False if it was stopped. A question without an answer is removed."""
        self.turns.append({"role": "user", "content": text})
        before = len(self.turns)
        try:
            return self._answer()
        except UserError as error:  # too long, or refused by the template: continue without it
            if not sys.stdin.isatty():
                raise
            remedy = "/undo or /reset makes room" if "context is" in error.message else error.remedy
            tell(as_typed(f"error: {error.message}" + (f"\n  {remedy}" if remedy else "")), out=sys.stderr)
            return False
        finally:
            if len(self.turns) == before:
                self.turns.pop()

    def _answer(self) -> bool:
        from nemotron_data.chat.answers import Text

        prompt = self._prompt()
        most = self.model.room(prompt, None, self.sampling.max_tokens)
        sampling = replace(self.sampling, max_tokens=most)
        text = Text(self.model.tokenizer, markup=self.model.chats, in_thought=prompt.in_thought)
        shown, said = Shown(self.out, self.think == "show"), ""
        answer = self.model.batch.generate(prompt.ids, sampling)
        try:
            for token in answer:
                for piece in text.feed(token.id):
                    shown.tell(piece)
                    said += piece.text if piece.kind == "content" else ""
        except KeyboardInterrupt:
            answer.cancel()
            shown.end()
            say("stopped; /undo forgets it")
        else:
            for piece in text.end():
                shown.tell(piece)
                said += piece.text if piece.kind == "content" else ""
            shown.end()
            if answer.reason == "length":
                say(f"cut after {most} tokens; --max-tokens allows more")
        self.turns.append({"role": "assistant", "content": said})
        return answer.reason != "cancelled"

    def _prompt(self) -> Any:
        if not self.model.chats:
            return self.model.prompter.text("".join(turn["content"] for turn in self.turns))
        options: dict[str, Any] = {"enable_thinking": False} if self.think == "off" else {}
        if self.system != self.told and self.model.prompter.hidden(self.conversation):
            from nemotron_data.chat.shown import SYSTEM, told

            say(f"WARNING: {told([SYSTEM])}: the model does not see yours")
            self.told = self.system
        return self.model.prompter.chat(self.conversation, **options)

    @property
    def conversation(self) -> list[dict[str, str]]:
        """All messages, the system message first."""
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.turns

    def obey(self, text: str) -> bool:
        """Run a command; returns True to end the conversation."""
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        if name == "/exit":
            return True
        if name == "/system":
            self.system = rest or None
            say("the system message is set" if rest else "the system message is removed")
        elif name == "/reset":
            self.turns.clear()
            say("started a new conversation")
        elif name == "/undo":
            del self.turns[-2:]
            say(f"{len(self.turns) // 2} questions are left")
        elif name == "/save":
            self._save(rest)
        elif name == "/help":
            tell("\n".join(f"{command:<13} {what}" for command, what in HELP.items()))
        else:
            known = [command.split()[0] for command in HELP]
            say(f"no command {printable(name)}; {did_you_mean(name, known, '/help lists them')}")
        return False

    def _save(self, name: str) -> None:
        if not name:
            say("name a file: /save FILE")
            return
        try:
            path = output_file(name)
            if path.exists():
                say(f"{name} exists; name another file")
                return
            write_text(path, json.dumps({"messages": self.conversation}, ensure_ascii=False) + "\n")
            say(f"saved to {name}")
        except (OSError, UserError) as error:
            say(f"cannot save: {error}")


class Shown:
    """An answer being printed: reasoning is dimmed, and terminal control sequences are removed."""

    def __init__(self, out: TextIO, thoughts: bool) -> None:
        self._out, self._thoughts, self._terminal = out, thoughts, out.isatty()
        self._dim, self._line = False, ""

    def tell(self, piece: Any) -> None:
        """Print a piece."""
        if piece.kind == "reasoning" and not self._thoughts:
            return
        if self._dim != (piece.kind == "reasoning"):
            self._dim = not self._dim
            if not self._dim:
                self._write("" if self._line.endswith("\n") else "\n")
            if self._terminal:
                self._out.write(DIM if self._dim else PLAIN)
        self._write(printable(piece.text, keep="\n\t") if self._terminal else piece.text)

    def _write(self, text: str) -> None:
        self._line = text or self._line
        self._out.write(text)
        self._out.flush()

    def end(self) -> None:
        """End the answer."""
        self._out.write(
            (PLAIN if self._dim and self._terminal else "") + ("" if self._line.endswith("\n") else os.linesep)
        )
        self._out.flush()
