"""Evaluate one model with NVIDIA's NeMo Evaluator, which runs in a separate environment and asks over HTTP.

Without `engine.endpoint`, this process serves the model on the loopback address until its tasks are done.
Tasks, rows and samples are the same as with the lm_eval engine.
"""

import re
import secrets
import shutil
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from lm_eval.models.utils import resolve_max_length

from nemotron_data.chat.prompt import Prompter
from nemotron_data.formats.eval_tasks import EvalTask
from nemotron_engines.modeling.build import load_tokenizer, read_config, set_threads
from nemotron_engines.modeling.generation import embeddings_of, ends_of
from nemotron_serving.api import Api
from nemotron_serving.batch import Batch
from nemotron_serving.model import LARGEST_CONTEXT, Model
from nemotron_serving.sampling import Sampling
from nemotron_serving.server import serving
from nemotron_shared.artifacts import Artifact
from nemotron_shared.engine.spec import Task
from nemotron_shared.system.atomic import write_text
from nemotron_shared.system.errors import UserError
from stages.eval.evaluator_section import NemoEvaluatorEngine
from stages.eval.harness import find_program, read_samples, run_eval
from stages.eval.harness_tasks import Samples, task_definition
from stages.eval.models import model_to_ask, tokenizer_folder
from stages.eval.schema import EvalConfig

# Our tasks run under the name of one of the harness's tasks; all of its settings are overridden below.
CHAT = ("lm-evaluation-harness.gsm8k_cot_instruct", "chat", "/v1/chat/completions")
COMPLETIONS = ("lm-evaluation-harness.hellaswag", "completions", "/v1/completions")
HEALTH_SECONDS = 10.0
KEY_NAME = "NEMOTRON_ENDPOINT_KEY"
"""Environment variable from which the harness takes the key of our own server."""

Tasks = Mapping[str, EvalTask]
Config = EvalConfig[NemoEvaluatorEngine]


@dataclass(frozen=True)
class Server:
    """A server: base URL, the model's context length, and the variable that holds its key. For our own server also
    which answers were cut, by question."""

    url: str
    max_length: int
    key_name: str | None
    cut: Mapping[str, bool] = field(default_factory=dict)


def evaluate_model(task: Task[Config], model: Artifact | None, tasks: Tasks) -> Samples:
    """Samples of each task, in the order of the task's file."""
    set_threads(task.config.run.threads)
    program = find_program("nemo-evaluator", task.config.engine.evaluator, "engine.evaluator")
    # tasks and tokenizer are local files; the libraries' caches stay in the run folder
    environment = program.environment(task.config.engine.telemetry)
    environment |= dict.fromkeys(("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"), "1")
    environment["HF_DATASETS_CACHE"] = str(task.run.directory / "evaluator" / "cache")
    environment[KEY_NAME] = secrets.token_urlsafe(32)
    folder = _plain(task.run.directory / "evaluator" / (model.manifest.name if model else "random"))
    shutil.rmtree(folder, ignore_errors=True)
    tokenizer = _plain(tokenizer_folder(task, model))
    eos = load_tokenizer(tokenizer).eos_token
    for name, about in tasks.items():
        definition = task_definition(about, task.config.evaluation, [eos] if eos else [])
        text = yaml.safe_dump(definition, sort_keys=False, allow_unicode=True)
        write_text(folder / "tasks" / f"{name}.yaml", text)
    samples: Samples = {}
    with _endpoint(task, model, environment[KEY_NAME]) as server:
        for host in (CHAT, COMPLETIONS):
            asked = {name: about for name, about in tasks.items() if (about.kind == "generate") == (host is CHAT)}
            if not asked:
                continue
            task.run.stop_if_requested()
            place = folder / host[1]
            config = run_config(task.config, host, server, list(asked), folder / "tasks", place / "output", tokenizer)
            run_eval(program, config, place, task.run, environment)
            for name, about in asked.items():
                rows = min(about.rows, task.config.evaluation.limit or about.rows)
                samples[name] = read_samples(place / "output", name, about.kind, rows)
                for sample in samples[name]:
                    if (cut := server.cut.get(sample.get("question", ""))) is not None:
                        sample["cut"] = float(cut)
    shutil.rmtree(folder)  # caches and logs; kept on failure
    return {name: samples[name] for name in tasks}


def _plain(path: Path) -> Path:
    """Check a path that the harness puts, unquoted, into a shell command and a comma-separated list.

    Raises:
        UserError: the path would be split there.
    """
    path = path.absolute()
    if not re.fullmatch(r"[\w@%+:./-]+", str(path)):
        raise UserError(
            f"{path}: the harness cannot handle blanks or special characters in a path", "move it, or set run.home"
        )
    return path


def run_config(
    config: Config,
    host: tuple[str, str, str],
    server: Server,
    names: list[str],
    tasks: Path,
    output: Path,
    tokenizer: Path,
) -> dict[str, Any]:
    """The config of `nemo-evaluator run_eval`.

    Args:
        host: the harness's task whose name ours use, the kind of endpoint, and its path.
        tasks: folder of the tasks' YAML files.
    """
    engine, (host_task, endpoint_type, path) = config.engine, host
    params = {
        "task": ",".join(names),
        "limit_samples": config.evaluation.limit,
        "temperature": 0.0,
        "top_p": 1.0,
        "max_new_tokens": config.evaluation.max_new_tokens,
        "parallelism": engine.parallelism,
        "request_timeout": engine.request_timeout,
        "max_retries": engine.max_retries,
        "extra": {
            "args": f"--include_path {tasks}",
            "num_fewshot": 0,
            "tokenizer": str(tokenizer),
            # Its command has no option for the length, so it goes in among the arguments. The harness subtracts two.
            "tokenizer_backend": f"huggingface,max_length={server.max_length + 2}",
            "tokenized_requests": endpoint_type == "completions",
        },
    }
    endpoint = {"url": server.url.rstrip("/") + path, "model_id": engine.served_model_name, "type": endpoint_type}
    if server.key_name:
        endpoint["api_key_name"] = server.key_name
    return {
        "config": {"type": host_task, "output_dir": str(output), "params": params},
        "target": {"api_endpoint": endpoint},
    }


@contextmanager
def _endpoint(task: Task[Config], model: Artifact | None, key: str) -> Generator[Server]:
    """The user's server, or our own, which requires this key and stops at the end of the block."""
    engine = task.config.engine
    if engine.endpoint is not None:
        if model is None:
            raise UserError("engine.endpoint needs run.model, for the tokenizer", "set run.model to the served model")
        _require_alive(engine.endpoint)
        config = read_config(model.path, trusted=model.trusted)
        yield Server(engine.endpoint, resolve_max_length(config, load_tokenizer(model.path)), engine.api_key_name)
        return
    loaded, tokenizer, _ = model_to_ask(task, model)
    name, batch_size = engine.served_model_name, task.config.evaluation.batch_size
    cut: dict[str, bool] = {}
    with served(loaded, tokenizer, name=name, batch_size=batch_size, key=key, cut=cut) as url:
        task.run.say(f"serving the model at {url} until its tasks are done")
        yield Server(url, resolve_max_length(loaded.config, tokenizer), KEY_NAME, cut)


@contextmanager
def served(
    model: Any, tokenizer: Any, *, name: str, batch_size: int, key: str, cut: dict[str, bool] | None = None
) -> Generator[str]:
    """Serve a model on this machine until the block ends; yields the base URL.

    Chat answers keep their thoughts, which scoring needs. Lengths are not checked: the harness respects the model's.

    Args:
        key: required from clients, because other users of the machine can reach the server too.
        cut: filled with each chat's last message and whether its answer reached the length limit.
    """

    def note(messages: Any, answer: Any) -> None:
        if cut is not None and isinstance(asked := messages[-1].get("content"), str):
            cut[asked] = answer.reason == "length"

    with Batch(model, ends_of(model, tokenizer), batch_size, name=name) as batch:
        prompter = Prompter(tokenizer, embeddings=embeddings_of(model))
        ready = Model(name, tokenizer, prompter, batch, LARGEST_CONTEXT, chats=True, asks=Sampling(0))
        with serving(Api(ready, (name,), most_tokens=16, whole_answers=True, hear=note).app(key)) as url:
            yield url


def _require_alive(url: str) -> None:
    """Check that the server responds, because the harness would retry for minutes.

    Raises:
        UserError: the server does not respond.
    """
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=HEALTH_SECONDS).close()
    except urllib.error.HTTPError:
        return  # a server is running; it just has no /health
    except OSError as error:
        raise UserError(
            f"engine.endpoint: no server responds at {url} ({error})", "start the server, or drop engine.endpoint"
        ) from error
