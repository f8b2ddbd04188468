"""Who answers: an OpenAI-compatible server, such as `nemotron serve sft`."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nemotron_shared.config.schema import EngineSection, How
from nemotron_shared.engine.engine import Engine, Inputs
from nemotron_shared.engine.spec import Outcome, Task
from nemotron_shared.machine.machine import Machine
from nemotron_shared.system.errors import Finding, UserError, problem
from nemotron_toy.harvest.prompts import ANSWERS, read_prompts
from nemotron_toy.harvest.schema import HarvestConfig

SHOWN = 300


class OpenAISettings(EngineSection):
    """The engine's own block of values."""

    name: Literal["openai"]
    url: How[str]
    """Address of the server's API: `http://127.0.0.1:8000/v1`."""
    model: str | None
    """The model's name at the server, by which a result is known. Required: `null` is an error."""
    connections: How[int] = Field(ge=1, le=256)
    """Requests at once."""
    timeout: How[float] = Field(gt=0)
    """Seconds that an answer may take."""


class OpenAI(Engine[HarvestConfig[OpenAISettings]]):
    """Asks for the answers to each question, in requests of their own, so that each has its own seed."""

    settings = OpenAISettings

    def check(self, config: HarvestConfig[OpenAISettings], inputs: Inputs, machine: Machine) -> Iterator[Finding]:
        """What has to be said before anything is asked."""
        if config.engine.model is None:
            remedy = f"engine.model=NAME; {config.engine.url}/models lists the names"
            yield problem("engine.model is null: whose answers are these?", remedy, "engine.model")
        if not config.engine.url.startswith(("http://", "https://")):
            remedy = "write it with http://, such as engine.url=http://127.0.0.1:8000/v1"
            yield problem(f"'{config.engine.url}' is not the address of a server", remedy, "engine.url")

    def run(self, task: Task[HarvestConfig[OpenAISettings]]) -> Outcome:
        """Append the answers to a file of the run, a line for each question, in their order; a stopped run goes on."""
        config, run, times = task.config, task.run, task.config.harvest.answers
        prompts, kept = read_prompts(config.harvest), run.directory / ANSWERS
        done = whole_lines(kept)
        wanted = [(number, place) for number in range(done, len(prompts)) for place in range(times)]
        with ThreadPoolExecutor(config.engine.connections) as pool, kept.open("a") as file:
            try:
                said = pool.map(lambda which: ask(config, prompts[which[0]].question, *which), wanted)
                for number, prompt in enumerate(prompts[done:], done + 1):
                    file.write(json.dumps({**prompt._asdict(), "answers": [next(said) for _ in range(times)]}) + "\n")
                    file.flush()
                    if run.stop_requested:
                        raise run.stopped()
                    if number % 100 == 0:
                        run.say(f"{number:,} of {len(prompts):,} questions are answered")
            finally:
                pool.shutdown(cancel_futures=True)
        return Outcome(run.directory)


def whole_lines(file: Path) -> int:
    """How many lines an attempt before this one has written; a kill may have cut the last one, which is removed."""
    if not file.exists():
        return 0
    lines = file.read_text().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    file.write_text("".join(whole))
    return len(whole)


def ask(config: HarvestConfig[OpenAISettings], question: str, number: int, place: int) -> dict[str, Any]:
    """One answer, {"content": ..., "reasoning_content": ... or None, "finish_reason": "stop"}.

    Raises:
        UserError: the server cannot be reached, refuses, or answers something else.
    """
    url = f"{config.engine.url.rstrip('/')}/chat/completions"
    body = {
        "model": config.engine.model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": config.harvest.max_tokens,
        "temperature": config.harvest.temperature,
        "seed": (config.run.seed + number * config.harvest.answers + place) % 2**32,
    }
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=config.engine.timeout) as response:
            choice = json.loads(response.read())["choices"][0]
            message = choice["message"]
            return {
                "content": message["content"] or "",
                "reasoning_content": message.get("reasoning_content"),
                "finish_reason": choice["finish_reason"],
            }
    except urllib.error.HTTPError as error:
        why = error.read(SHOWN).decode("utf-8", "replace")
        raise UserError(f"{url}: status {error.code}: {why}", "see what it serves, and set engine.model") from error
    except OSError as error:
        raise UserError(f"{url}: {error}", "start the server (nemotron serve sft), or set engine.url") from error
    except (ValueError, LookupError, TypeError) as error:
        raise UserError(f"{url}: not an answer in OpenAI's format", "set engine.url to a server's /v1") from error
