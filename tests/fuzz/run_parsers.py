"""Parsers of the store, the files of a run, folders of models, logs of jobs, and requests to the server."""

import asyncio
import hashlib
import json
import math
import struct
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from pathlib import Path, PurePosixPath
from random import Random
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import jsonschema
from fuzz.damage import Files, change_value, damaged
from fuzz.parser import (
    Parser,
    is_count,
    is_number,
    json_examples,
    json_lines,
    lines_of,
    strict_json,
)
from starlette.requests import Request
from starlette.responses import Response

from nemotron_app.report.training import facts, panels
from nemotron_cluster.diagnose.causes import Diagnosis, diagnose, rules
from nemotron_cluster.diagnose.causes import Facts as Ending
from nemotron_cluster.diagnose.logs import read_logs
from nemotron_cluster.slurm.scheduler import CONDITIONS, Facts, explain_reason, explain_refusal, find_job
from nemotron_data.chat.prompt import Prompter
from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_data.tokenizers.tiny import build_tokenizer, save_tokenizer
from nemotron_engines.modeling.architecture import differences, parameters_in
from nemotron_serving.api import Api, _answered
from nemotron_serving.batch import Full
from nemotron_serving.model import Model
from nemotron_serving.server import Refusal
from nemotron_shared.artifacts import Artifact, FileEntry, Manifest, Parent, Producer, Source, Store
from nemotron_shared.artifacts.artifact import problems, table_digest
from nemotron_shared.engine.checkpoints import Layout, Mark, Validation, damage_of
from nemotron_shared.models.folder import config_of, require_loadable
from nemotron_shared.models.weights import require_whole
from nemotron_shared.step.records import changes
from nemotron_shared.system.digest import file_digest
from nemotron_shared.system.errors import UserError
from nemotron_shared.tracking.metrics import RESULT_METRICS, MetricsLog, last_values, read_metrics
from nemotron_shared.tracking.segments import read_segments

# The artifact store: manifests, and the notes beside the versions.

PAYLOAD = b"weights"
SHELF = "artifacts/super3-sft-model"
TEXT, OBJECT, SHA = {"type": "string"}, {"type": "object"}, {"type": "string", "pattern": "^[0-9a-f]{64}$"}
TYPES = ("PretrainBlendsArtifact", "ModelArtifact", "SFTDataArtifact", "SplitJsonlDataArtifact", "EvalDataArtifact",
         "EvalResultsArtifact")  # fmt: skip


def _record(required: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": required, "required": list(required), "additionalProperties": False}


def _list_of(**required: Any) -> dict[str, Any]:
    return {"type": "array", "items": _record(required)}


PRODUCER = ("stage", "verb", "stage_version", "shared_version", "config_digest", "code_digest", "command")
FILE = _record({"sha256": SHA, "bytes": {"minimum": 0, "type": "integer"}})
MANIFEST = _record(
    {
        "schema_version": {"const": 2},
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,99}$"},
        "version": {"type": "integer", "minimum": 1},
        "type": {"enum": [*TYPES]},
        "files": {"type": "object", "additionalProperties": FILE},
        "producer": _record(
            dict.fromkeys(PRODUCER, TEXT) | {"git": {"type": ["string", "null"]}, "environment": OBJECT}
        ),
        "parents": _list_of(reference=TEXT, digest=SHA, role=TEXT),
        "sources": _list_of(uri=TEXT, digest=TEXT, detail=OBJECT),
        "segments": {"type": "array"},
        **dict.fromkeys(("created_at", "fingerprint"), TEXT),
        **dict.fromkeys(("digest", "self_digest"), SHA),
        **dict.fromkeys(("metadata", "metrics"), OBJECT),
    }
)
"""docs/artifacts.md, The manifest."""


def manifest() -> Manifest:
    """A valid one, of the one file `model.safetensors`."""
    sha = hashlib.sha256(PAYLOAD).hexdigest()
    files = {"model.safetensors": FileEntry(sha, len(PAYLOAD))}
    return Manifest(
        name="super3-sft-model", version=1, type="ModelArtifact", created_at="2026-01-31T12:00:00+00:00",
        fingerprint=sha, digest=table_digest(files), files=files, segments=[],
        producer=Producer("sft", "train", "0.1.0", "0.1.0", sha, sha, None, "stages/sft/train.py -c tiny", {"a": "1"}),
        parents=(Parent("super3-sft-data:v1", sha, "data"),), sources=(Source("hf://org/set", sha, {"rows": 10}),),
        metadata={"step": 40}, metrics={"final_loss": 2.31},
    )  # fmt: skip


def artifacts() -> list[Files]:
    without = replace(manifest(), parents=(), sources=(), metrics={})
    return [{"manifest.json": one.to_bytes(), "model.safetensors": PAYLOAD} for one in (manifest(), without)]


def _digest_of(value: Any) -> str:
    """Of a record with a digest of itself, which is not part of it."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def damage_sealed(files: Files, random: Random) -> Files:
    """A changed manifest with a right digest, as somebody who knows the format would write it."""
    value = change_value(json.loads(files["manifest.json"]), random)
    if isinstance(value, dict):
        value.pop("self_digest", None)
        value["self_digest"] = _digest_of(value)
    return {**files, "manifest.json": json.dumps(value).encode("utf-8", "surrogatepass")}


def check_manifest(files: Files, made: Manifest) -> None:
    value = json.loads(files["manifest.json"])
    jsonschema.validate(value, MANIFEST)
    for name, entry in value["files"].items():
        path = PurePosixPath(name)
        assert name and str(path) == name and not path.is_absolute() and ".." not in path.parts and "\0" not in name
        assert is_count(entry["bytes"])
    assert datetime.fromisoformat(value["created_at"]).tzinfo is not None


def check_intact(files: Files, made: list[str]) -> None:
    """Damage is noticed."""
    value = json.loads(files["manifest.json"])
    there = {
        name: (hashlib.sha256(one).hexdigest(), len(one)) for name, one in files.items() if name != "manifest.json"
    }
    said = {name: (entry["sha256"], entry["bytes"]) for name, entry in value["files"].items()}
    own = value.pop("self_digest")
    assert made or (said == there and own == _digest_of(value))


def stores() -> list[Files]:
    notes = {"aliases.json": {"best": 1}, "reused.json": {"version": 1, "newest": 2}, "index.json": {"1": None}}
    versions = {f"{SHELF}/v{number}/manifest.json": replace(manifest(), version=number).to_bytes() for number in (1, 2)}
    return [{**versions, **{f"{SHELF}/{name}": json.dumps(value).encode() for name, value in notes.items()}}]


def damage_notes(files: Files, random: Random) -> Files:
    name = random.choice([name for name in files if "/v" not in name])
    return {**files, **damaged({name: files[name]}, random, ("best", "v1", "3"))}


def read_store(folder: Path, files: Files) -> Artifact:
    store = Store(folder)
    store.find_by_fingerprint("super3-sft-model", manifest().fingerprint)
    for alias in store.aliases("super3-sft-model"):
        store.resolve(f"sft:{alias}")
    return store.resolve("sft")


def check_newest(files: Files, made: Artifact) -> None:
    aliases, reused = (json.loads(files.get(f"{SHELF}/{name}.json", b"{}")) for name in ("aliases", "reused"))
    assert all(type(version) is int and version in (1, 2) for version in aliases.values())
    complete = [number for number in (1, 2) if f"{SHELF}/v{number}/manifest.json" in files]
    again = reused.get("version") if reused.get("newest") == 2 else None
    assert made.manifest.version == (again if type(again) is int and again in complete else max(complete))


# Files of a run: metrics.jsonl, the marks of checkpoints, the segments.

METRICS = [
    *({"step": step, "loss": 3.9 / step, "lr": 0.003, "tokens": 2048 * step, "seconds": 0.5 * step, "grad_norm": 1.0}
      for step in (1, 2, 3, 4)),
    {"step": 4, "valid_loss": 1.25},
]  # fmt: skip


def read_run_metrics(folder: Path, files: Files) -> None:
    entries = list(read_metrics(folder / "metrics.jsonl"))
    facts(entries)
    panels(entries)
    log = MetricsLog(folder / "metrics.jsonl")
    last_values(log, RESULT_METRICS)
    log.cut_after(2)


def check_metrics(files: Files, made: None) -> None:
    for line in lines_of(files.get("metrics.jsonl", b"").rpartition(b"\n")[0]):
        entry = json.loads(line)
        assert is_count(entry["step"])
        known = [entry[name] for row in METRICS for name in row if name in entry]  # an engine may log more
        assert all(type(figure) in (int, float) for figure in known)


STATE = {"model.bin": b"weights", "optimizer.bin": b"moments"}


def checkpoints() -> list[Files]:
    table = {name: FileEntry(hashlib.sha256(one).hexdigest(), len(one)) for name, one in STATE.items()}
    marks = (Mark(30, 1, table, Validation(30, "valid_loss", 1.5)), Mark(30, 2, table))
    state = {f"checkpoint-30/{name}": one for name, one in STATE.items()}
    return [{**state, "checkpoint-30/COMPLETE": mark.text().encode()} for mark in marks]


def read_checkpoint(folder: Path, files: Files) -> None:
    if damage := damage_of(folder / "checkpoint-30", Layout()):
        raise UserError(damage, "it is set aside, and the one before it is used")


def check_checkpoint(files: Files, made: None) -> None:
    mark = strict_json(files["checkpoint-30/COMPLETE"])
    assert mark["step"] == 30 and is_count(mark["world_size"]) and mark["world_size"] > 0
    assert mark.pop("digest") == _digest_of(mark)
    for name, entry in mark["files"].items():
        content = files[f"checkpoint-30/{name}"]
        assert (entry["bytes"], entry["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def segments() -> list[Files]:
    one = {
        "began": "2026-01-31T12:00:00+00:00", "from_step": 0, "how": {"train.micro_batch_size": 8},
        "modules": {"stages.sft.train": "5e88"}, "machine": {"host": "n1", "processes": 1, "cores": 2},
    }  # fmt: skip
    return [{"segments.json": json.dumps([one, {**one, "from_step": 20}]).encode()}]


def read_run_segments(folder: Path, files: Files) -> None:
    found = read_segments(folder)
    if len(found) > 1:
        changes(found[0], found[-1])


def check_segments(files: Files, made: None) -> None:
    value = json.loads(files.get("segments.json", b"[]"))
    assert isinstance(value, list)
    for one in value:
        assert isinstance(one["began"], str) and (one["from_step"] is None or is_count(one["from_step"]))
        assert all(isinstance(one[key], dict) for key in ("how", "modules", "machine"))


# Folders of models: config.json, weights and their index, tokenizers.

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 512,
    "architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "layers_block_type": ["mamba", "attention"],
}  # fmt: skip
FIELDS = {"hidden_size": 64, "hybrid_override_pattern": "M*", "num_attention_heads": 4}
MODEL_WORDS = ("model_type", "auto_map", "data_offsets", "dtype", "shape", "BF16", "../x", "model.layers.0.norm.weight",
               "a--b")  # fmt: skip
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
         "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "U32": 4, "U64": 8}  # fmt: skip


def safetensors(*names: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for number, name in enumerate(names):
        header[name] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [24 * number, 24 * number + 24]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(24 * len(names))


def model_folders() -> list[Files]:
    names = [f"model.layers.{layer}.norm.weight" for layer in (0, 1)]
    weight_map = {name: f"model-{n}.safetensors" for n, name in enumerate(names)}
    index = json.dumps({"metadata": {"total_size": 48}, "weight_map": weight_map}).encode()
    config = {"config.json": json.dumps(CONFIG).encode()}
    several = {file: safetensors(name) for name, file in weight_map.items()}
    return [
        {**config, "model.safetensors": safetensors(*names)},
        {**config, "model.safetensors.index.json": index, **several},
    ]


def read_config(folder: Path, files: Files) -> dict[str, Any]:
    config = config_of(folder)
    require_loadable("model", config, trusted=False)
    differences(config, FIELDS)
    return config


def check_model_config(files: Files, made: dict[str, Any]) -> None:
    value = json.loads(files.get("config.json", b"{}"))
    assert isinstance(value.get("model_type"), str | None)


def read_model(folder: Path, files: Files) -> None:
    config = read_config(folder, files)
    require_whole("model", folder, config)
    parameters_in(folder)


def check_weights(files: Files, made: None) -> None:
    check_model_config(files, {})
    index = files.get("model.safetensors.index.json")
    wanted = json.loads(index)["weight_map"] if index is not None else {}
    names = {*wanted.values()} if wanted else {name for name in files if name.endswith(".safetensors")}
    there = {name: _tensors(files[name]) for name in names}
    assert all(tensor in there[file] for tensor, file in wanted.items())
    assert not wanted or {*wanted} >= set().union(*there.values())


def _tensors(content: bytes) -> set[str]:
    """Names in a safetensors file, by its description: a header, dtypes, shapes, offsets that leave no gap."""
    length = int.from_bytes(content[:8], "little")
    header = strict_json(content[8 : 8 + length])
    tensors = {name: one for name, one in header.items() if name != "__metadata__"}
    at = 0
    for one in sorted(tensors.values(), key=lambda one: one["data_offsets"]):
        low, high = one["data_offsets"]
        assert all(map(is_count, (low, high, *one["shape"]))) and low == at and high >= low
        assert len(one["shape"]) <= 64 and max(one["shape"], default=0) < 2**63 and math.prod(one["shape"]) < 2**63
        if one["dtype"] in BYTES:  # others may be newer than both readers
            assert high - low == BYTES[one["dtype"]] * math.prod(one["shape"])
        at = high
    assert len(content) == 8 + length + at
    return {*tensors}


@cache
def tokenizers() -> list[Files]:
    """The tiny tokenizer with a few merges, so that damage meets every part of it; and whole."""
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder))
        made = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    value = json.loads(made["tokenizer.json"])
    merges = value["model"]["merges"] = value["model"]["merges"][:4]
    keep = {text for pair in merges for text in ("".join(pair), *pair)}
    vocab = value["model"]["vocab"]
    value["model"]["vocab"] = {text: number for text, number in vocab.items() if number < 40 or text in keep}
    return [{**made, "tokenizer.json": json.dumps(value).encode()}, made]


def read_tokenizer(folder: Path, files: Files) -> None:
    tokenizer = TokenizerFolder(folder)
    tokenizer.special_ids()
    assert all(tokenizer.special_text(role) != "" for role in ("bos_token", "eos_token"))
    tokenizer.chat_template()
    tokenizer.tokenizer.encode("What is 3+4? é")
    assert tokenizer.vocab_size >= 0


def check_tokenizer(files: Files, made: None) -> None:
    vocab = json.loads(files["tokenizer.json"])["model"]["vocab"]
    assert isinstance(vocab, dict | list) and vocab
    settings = json.loads(files.get("tokenizer_config.json", b"{}"))
    for role in ("bos_token", "eos_token", "pad_token"):
        token = settings.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        assert text is None or (isinstance(text, str) and text)


# What other programs print: logs of jobs, and Slurm's answers.

TRACE = b"""2026-01-31 12:00:00 step 1 loss 3.2
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
error: tiny.yaml: unknown key 'train.train_iter'
  did you mean 'train.train_iters'?
slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-01-31T12:00:05 DUE TO TIME LIMIT ***
"""
ANSWERS = {
    "squeue.log": b"1234|TIMEOUT|15|1|2026-01-31T12:00:00|n[1-4]|NonZeroExitCode|\n",
    "sacct.log": b"1234|CANCELLED by 1000|0:15|2026-01-31T12:00:00|n1|None\n",
    "scontrol.log": b"JobId=1234 JobState=FAILED Reason=Node_Down Restarts=2 StartTime=2026-01-31T12:00:00 NodeList=n1 "
    b"ExitCode=3:0\n",
    "refused.log": b"sbatch: error: QOSMaxGRESPerUser\n"
    b"sbatch: error: Batch job submission failed: Job violates accounting/QOS policy\n",
    "exit.log": b"3\n",
}
LOG_WORDS = ("TIMEOUT", "|", "JobState=", "Traceback (most recent call last):\n", "CUDA out of memory", "\x1b[31m",
             "\r", "²", "٣")  # fmt: skip


def logs() -> list[Files]:
    every_rule = "\n".join(rule.example for rule in rules()).encode()
    return [{"job.log": TRACE}, {"job.log": every_rule}, {"slurm-12.out": TRACE, "slurm-13.out": b"fine\n"}]


def read_job_logs(folder: Path, files: Files) -> Diagnosis:
    found = diagnose(read_logs(folder), Ending("failed", "exit_code", "ended with exit code 1", exit_code=1))
    found.last_lines()
    return found


def check_diagnosis(files: Files, made: Diagnosis) -> None:
    for one in made.findings:
        text = files.get(one.place, b"").decode("utf-8", "replace")
        assert one.line is None or 1 <= one.line <= text.count("\n") + 1
        assert one.text.isprintable() and len(one.text) < 2000


def slurm_answers() -> list[Files]:
    later = {**ANSWERS, "squeue.log": b""}  # the job has left the queue, and then the accounting
    return [ANSWERS, later, {**later, "sacct.log": b""}, {**dict.fromkeys(ANSWERS, b""), "exit.log": b"0\n"}]


def read_slurm(folder: Path, files: Files) -> Facts | None:
    answers = {name: content.decode("utf-8", "replace") for name, content in files.items()}

    def run(command: list[str]) -> CompletedProcess[str]:
        return CompletedProcess(command, 0, answers[f"{command[0]}.log"], "")

    assert explain_refusal(answers["refused.log"])
    said = find_job(run, "1234", lambda: answers["exit.log"])
    if said:
        assert explain_reason(said.reason, said.restarts)
    return said


def check_slurm(files: Files, made: Facts | None) -> None:
    if made is not None:
        known = {state for states in CONDITIONS.values() for state in states}
        assert made.over <= (made.state in known), "an unknown state does not end a job"
        assert made.restarts is None or made.restarts >= 0
        assert made.exit_code is None or (made.exit_code >= 0 and made.over)
        assert not {"\n", " "} & set(made.state)


# What clients send to the server, up to where the model would begin.

CONTEXT = 4096
TURNS = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "2+2?"}]}]
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
ADDED = [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "3", "tool_call_id": "c"}]
CHATS = (
    {"model": "tiny", "messages": TURNS[1:], "max_tokens": 8, "temperature": 0.5, "seed": 1},
    {"messages": TURNS, "tools": [ADD], "tool_choice": "auto", "stop": ["x"], "n": 2, "top_p": 0.9, "logprobs": True},
    {"messages": [*TURNS, *ADDED], "chat_template_kwargs": {"enable_thinking": False}, "stream": True,
     "stream_options": {"include_usage": True}},
)  # fmt: skip
PROMPTS = (
    {"model": "tiny", "prompt": "2+2=", "max_tokens": 4, "temperature": 0, "logprobs": 1, "echo": True},
    {"prompt": ["a", "b"], "n": 2, "stop": "x"},
    {"prompt": [11, 12]},
    {"prompt": [[11], [12, 13]], "seed": -3},
)
REQUEST_WORDS = ("messages", "role", "user", "prompt", "n", "seed", "stop", "<|im_end|>", "tools", "enable_thinking")


@cache
def api() -> Api:
    from doors import Encoded

    def begin(*_: object, **__: object) -> None:
        raise Full("valid")

    tokenizer, batch = Encoded(build_tokenizer()), SimpleNamespace(generate=begin, score=begin)
    model: Any = SimpleNamespace(
        tokenizer=tokenizer,
        prompter=Prompter(tokenizer, CONTEXT),
        context=CONTEXT,
        batch=batch,
        grammars=SimpleNamespace(constraint=lambda form: None),
    )
    model.room = partial(Model.room, model)
    return Api(model, ("tiny",), 256)


def post(name: str) -> Callable[[Path, Files], None]:
    """Send the body to a route; the model's own work does not begin."""

    async def answer(body: bytes) -> Response:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        route: Callable[[Request], Awaitable[Response]] = _answered(getattr(api(), name))
        scope = {"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")], "path": "/"}
        try:
            return await route(Request(scope, receive))
        except Refusal as refused:
            return refused.response()

    def read(folder: Path, files: Files) -> None:
        response = asyncio.run(answer(files["body.json"]))
        if response.status_code not in (200, 429):  # 429: it was about to begin
            said = json.loads(bytes(response.body))["error"]["message"]
            assert 400 <= response.status_code < 500, f"{response.status_code}: {said}"
            raise UserError(said, "the message is all that a client reads")

    return read


def check_request(files: Files, made: None) -> dict[str, Any]:
    """OpenAI's reference of both routes, as far as the server supports it."""
    body = strict_json(files["body.json"])
    assert body.get("model") in (None, "tiny")
    for name, most in (("temperature", 2), ("top_p", 1)):
        value = body.get(name)
        assert value is None or (is_number(value) and 0 <= value <= most)
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        assert value is None or (is_count(value) and value <= CONTEXT)
    stops = body.get("stop")
    assert "" not in (stops if isinstance(stops, list) else [stops])
    assert body.get("n") is None or (is_count(body["n"]) and 1 <= body["n"] <= 16)
    return body


def check_chat_request(files: Files, made: None) -> None:
    messages = check_request(files, made)["messages"]
    roles = {"system", "developer", "user", "assistant", "tool", "function"}
    assert messages and isinstance(messages, list) and {message["role"] for message in messages} <= roles


def check_text_request(files: Files, made: None) -> None:
    prompt = check_request(files, made)["prompt"]
    assert isinstance(prompt, str | list) and prompt
    parts = [part if isinstance(part, list) else [part] for part in prompt]
    assert all(isinstance(one, str) or (is_count(one) and one < 512) for part in parts for one in part)


PARSERS = {
    "manifest": Parser(
        artifacts, lambda folder, files: Manifest.read(folder / "manifest.json"), check_manifest,
        ("../x", "v0", "name:v1"), damage_sealed,
    ),
    "intact": Parser(
        artifacts,
        lambda folder, files: problems(Artifact(Manifest.read(folder / "manifest.json"), folder), digest=file_digest),
        check_intact, damage=damage_sealed,
    ),
    "notes": Parser(stores, read_store, check_newest, damage=damage_notes),
    "metrics": Parser(
        lambda: [{"metrics.jsonl": json_lines(*METRICS)}], read_run_metrics, check_metrics, ("step", "loss", "seconds")
    ),
    "mark": Parser(checkpoints, read_checkpoint, check_checkpoint, ("../x", "COMPLETE", "step")),
    "segments": Parser(segments, read_run_segments, check_segments, ("began", "how")),
    "model_config": Parser(json_examples("config.json", CONFIG), read_config, check_model_config, MODEL_WORDS),
    "weights": Parser(model_folders, read_model, check_weights, MODEL_WORDS),
    "tokenizer": Parser(
        tokenizers, read_tokenizer, check_tokenizer, ("eos_token", "content", "<s>", "model", "vocab", "merges"),
        share=0.6,
    ),
    "diagnose": Parser(logs, read_job_logs, check_diagnosis, LOG_WORDS, share=0.2),
    "slurm": Parser(slurm_answers, read_slurm, check_slurm, LOG_WORDS, on_disk=False, share=2),
    "chat_request": Parser(
        json_examples("body.json", *CHATS), post("chat"), check_chat_request, REQUEST_WORDS, on_disk=False
    ),
    "text_request": Parser(
        json_examples("body.json", *PROMPTS), post("completions"), check_text_request, REQUEST_WORDS, on_disk=False
    ),
}  # fmt: skip
