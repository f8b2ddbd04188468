"""`nemotron generate`: answers to a file of prompts, as JSON lines.

    nemotron generate sft prompts.jsonl --out answers.jsonl
    nemotron generate rl prompts.txt --out answers.jsonl --temperature 0.7 --seed 1

Each line of the file has `messages`, `prompt`, `question` or `input`, and may have `tools`; in files other than .jsonl
each line is a prompt. Output lines have all input fields, and `response`, `finish_reason` and, if the model reasoned or
called tools, `reasoning` and `tool_calls`. Lines are in the order of the file. To resume a stopped run, repeat the
command.
"""

import hashlib
import json
import os
import queue
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from nemotron_data.sources.json_rows import repeated_key, without_table_nulls
from nemotron_serving.options import Chosen, model_options, sampling_options
from nemotron_shared.system.atomic import open_atomic, output_file
from nemotron_shared.system.console import renew, say
from nemotron_shared.system.digest import file_digest, json_digest
from nemotron_shared.system.errors import UserError
from nemotron_shared.system.lock import locked

FIELDS = ("messages", "prompt", "question", "input")
ADDED = ("response", "finish_reason", "reasoning", "tool_calls", "logprobs")
SAY_EVERY = 10


@dataclass(frozen=True)
class Row:
    """One line of the file: its fields, and either a conversation with tools or a text to continue."""

    number: int
    given: dict[str, Any]
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None
    text: str


@click.command("generate", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
@model_options(default_newest=False)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="where the answers go")
@sampling_options(most_tokens=512)
@click.option("--system", metavar="TEXT", help="a system message before each prompt")
@click.option("--raw", is_flag=True, help="continue the text, without the chat template")
@click.option("--no-think", is_flag=True, help="tell the chat template that no thought is wanted")
@click.option("--logprobs", is_flag=True, help="add the log-probability of each token")
@click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True, help="answers made at once")
@click.option("--force", is_flag=True, help="write FILE again where it exists")
def command(chosen: Chosen, file: Path, out: Path, force: bool, batch_size: int, **asked: Any) -> int:
    """Run the command; see the module docstring."""
    target = output_file(out)
    rows = list(read_rows(file, asked["raw"], asked["system"]))
    if out.exists() and not force:
        raise UserError(f"{out}: exists", "give another --out, or --force to write it again")
    if out.exists() and out.samefile(file):
        raise UserError(f"--out {out}: this is the file of the prompts", "give another name")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: folder {out.parent} not found", "create the folder, or give another name")
    identity = json_digest({"file": file_digest(file), "model": chosen.artifact.manifest.digest, **asked})
    lock = target.with_name(f".{target.name}.lock")
    with locked(lock, wait=False):
        progress = Progress(target.with_name(f".{target.name}.part"), identity, len(rows))
        if progress.done:
            say(f"[{out}] going on: {len(progress.done)} of {len(rows)} are answered")
        if len(progress.done) < len(rows):
            _answer(chosen, [row for row in rows if row.number not in progress.done], progress, batch_size, asked)
        with open_atomic(target) as written:
            for row in rows:
                made = row.given | progress.done[row.number]
                written.write(json.dumps(made, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        progress.forget()
    lock.unlink(missing_ok=True)
    chosen.look.tell({"file": str(out), "rows": len(rows), "model": chosen.artifact.reference},
                     f"{out}: {len(rows)} answers of {chosen.artifact.reference}")  # fmt: skip
    return 0


def read_rows(file: Path, raw: bool, system: str | None) -> Iterator[Row]:
    """Read the prompts of a file.

    Raises:
        UserError: no prompts, or a line without one.
    """
    found = 0
    for number, line in enumerate(_text_of(file).split("\n"), start=1):  # JSON may contain other line separators
        if line.strip():
            found += 1
            yield _row(f"{file}:{number}", number, line, file.suffix == ".jsonl", raw, system)
    if not found:
        raise UserError(f"{file}: holds no prompts", f"write one on each line; in .jsonl as {', '.join(FIELDS)}")


def _text_of(file: Path) -> str:
    try:
        content = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"{file}: no such file", "give the path of a text file, or of JSON lines") from error
    except IsADirectoryError as error:
        raise UserError(f"{file}: is a folder", "give the path of a text file, or of JSON lines") from error
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(f"{file}:{line}: not a text in UTF-8: {error}", "save it in UTF-8") from error


def _row(place: str, number: int, line: str, is_json: bool, raw: bool, system: str | None) -> Row:
    given: Any = {"prompt": line}
    if is_json:
        try:
            given = json.loads(line)
            twice = repeated_key(line.encode("utf-8", "surrogatepass"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{place}: not JSON: {error}", "correct the line") from error
        if twice is not None:
            raise UserError(f"{place}: has the key '{twice}' twice", "give it once: which of the two is meant?")
    name = next((name for name in FIELDS if given.get(name)), None) if isinstance(given, dict) else None
    if name is None:
        raise UserError(f"{place}: none of {', '.join(FIELDS)}", "give the prompt one of these names")
    asked, messages, tools = given[name], None, None
    if name == "messages" and raw:
        raise UserError(f"{place}: messages cannot be continued as text", "leave --raw out, or give prompt")
    if name != "messages" and not isinstance(asked, str):
        raise UserError(f"{place}: {name} is not a text", "correct the line")
    if not raw:
        from nemotron_data.chat.prompt import asked_messages
        from nemotron_data.chat.rows import tools_of

        # table columns have one type, which adds nulls to rows
        without = without_table_nulls(given)
        turns = without[name] if name == "messages" else [{"role": "user", "content": asked}]
        try:
            if not isinstance(turns, list):
                raise ValueError("messages is not a list of objects")
            messages, tools = asked_messages(turns), tools_of(without)
        except (ValueError, UserError) as error:
            raise UserError(f"{place}: {getattr(error, 'message', error)}", "correct the line") from error
    if system and messages is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    kept = {key: given[key] for key in given if key not in ADDED}
    return Row(number, kept, messages, tools, "" if messages else asked)


class Progress:
    """Journal of finished answers, in the order in which they end: a kill loses only the line being written."""

    def __init__(self, file: Path, identity: str, rows: int) -> None:
        self._file = file
        self.rows, self.done = rows, dict[int, dict[str, Any]]()
        whole = 0
        if file.is_file():
            first, *others = file.read_bytes().splitlines(keepends=True) or [b""]
            with suppress(ValueError):
                if json.loads(first) == {"identity": identity}:
                    whole = len(first)
                    for line in others:
                        if not line.endswith(b"\n"):
                            break
                        number, made = json.loads(line)
                        self.done[number] = made
                        whole += len(line)
        if not whole:
            file.write_text(json.dumps({"identity": identity}) + "\n", encoding="utf-8")
        else:
            os.truncate(file, whole)
        self._open = file.open("ab")

    def add(self, number: int, made: dict[str, Any]) -> None:
        """Keep an answer."""
        self.done[number] = made
        self._open.write(json.dumps([number, made]).encode() + b"\n")
        self._open.flush()

    def forget(self) -> None:
        """Delete the journal, once the answers are in the output file."""
        self._open.close()
        self._file.unlink()


def _answer(chosen: Chosen, rows: list[Row], progress: Progress, size: int, asked: dict[str, Any]) -> None:
    """Answer every row, `size` at once, and keep the results."""
    with chosen.ready(size) as model:
        from nemotron_serving.batch import End
        from nemotron_serving.sampling import Token

        if not asked["raw"] and not model.chats:
            what = f"{chosen.artifact.reference} was not taught to chat"
            raise UserError(what, "add --raw to continue the prompts as text")
        _tell_hidden(model.prompter, rows)
        heard: queue.SimpleQueue[tuple[int, Token | End]] = queue.SimpleQueue()
        open_rows, left = dict[int, Any](), iter(rows)

        def begin(row: Row) -> None:
            options: dict[str, Any] = {"enable_thinking": False} if asked["no_think"] else {}
            prompter = model.prompter
            try:
                chats = row.messages is not None
                prompt = prompter.chat(row.messages, row.tools, **options) if chats else prompter.text(row.text)
                most = model.room(prompt, None, asked["max_tokens"])
            except UserError as error:
                raise UserError(f"line {row.number}: {error.message}", error.remedy) from error
            seed = int(hashlib.sha256(f"{asked['seed'] or 0} {row.number}".encode()).hexdigest()[:15], 16)
            logprobs = 0 if asked["logprobs"] else None
            sampling = model.sampling(most, asked["temperature"], asked["top_p"], seed, logprobs)
            open_rows[row.number] = (row, prompt, [])
            model.batch.generate(prompt.ids, sampling, lambda what: heard.put((row.number, what)))

        for row in islice(left, 2 * size):
            begin(row)
        while open_rows:
            number, what = heard.get()
            row, prompt, tokens = open_rows[number]
            if isinstance(what, Token):
                tokens.append(what)
                continue
            if what.error:
                raise what.error
            del open_rows[number]
            progress.add(number, _made(model.tokenizer, row, prompt, tokens, what.reason, asked))
            if len(progress.done) % SAY_EVERY == 0 or not open_rows:
                renew(f"{len(progress.done)} of {progress.rows} answered")
            following = next(left, None)
            if following is not None:
                begin(following)


def _tell_hidden(prompter: Any, rows: list[Row]) -> None:
    """Print a line about parts of the rows that the model does not see."""
    from nemotron_data.chat.shown import told

    hidden = Counter(prompter.hidden(row.messages, row.tools) for row in rows if row.messages is not None)
    for kinds, count in hidden.items():
        if kinds:
            say(f"WARNING: {told(kinds)}: {count:,} of {len(rows):,} rows lose theirs")


def _made(
    tokenizer: Any, row: Row, prompt: Any, tokens: list[Any], reason: str, asked: dict[str, Any]
) -> dict[str, Any]:
    """Fields to add to a line."""
    from nemotron_data.chat.answers import Text
    from nemotron_data.tokenizers.words import TokenNames
    from nemotron_serving.wire import entries_of

    text = Text(tokenizer, markup=not asked["raw"], in_thought=prompt.in_thought, tools=row.tools or ())
    pieces = [piece for token in tokens for piece in text.feed(token.id)] + text.end()
    said = {kind: "".join(piece.text for piece in pieces if piece.kind == kind) for kind in ("content", "reasoning")}
    calls = [piece.call for piece in pieces if piece.call]
    if calls:
        reason, said["content"] = "tool_calls" if reason == "stop" else reason, said["content"].strip()
    made: dict[str, Any] = {"response": said["content"], "finish_reason": reason}
    if said["reasoning"]:
        made["reasoning"] = said["reasoning"].rstrip("\n")
    if calls:
        # numbered, so that the same command gives the same bytes
        made["tool_calls"] = [call.as_message(f"call_{number}") for number, call in enumerate(calls, start=1)]
    if asked["logprobs"]:
        made["logprobs"] = entries_of(TokenNames(tokenizer), tokens)
    return made
