"""Programs of others ask our server as their users do, with their own defaults, and get right answers.

Run with `ci/engine.sh clients`, which makes their environments (`clients/clients.txt`, `clients/package-lock.json`).
The model knows where five people live, and calls a tool where it has one; see small_talker.py.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.small_talker import ENOUGH, HOMES, make, question

from nemotron_serving.api import Api
from nemotron_serving.model import ready
from nemotron_serving.server import serving
from nemotron_shared.artifacts import Store
from nemotron_shared.models.importing import import_folder

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent / "clients"
PYTHON = os.environ.get("NEMOTRON_CLIENTS", "")
NPM = os.environ.get("NEMOTRON_CLIENTS_NPM", "")
NAME = "talker"
SAID, CITY, CALL = "In Oslo.", "Oslo", ["where", {"name": "Ada"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    made = tmp_path_factory.mktemp("model") / NAME
    assert make(made) >= ENOUGH, "the model has not learnt its answers: nothing can be said of clients"
    return made


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its server, with the defaults of `nemotron serve`."""
    home = tmp_path_factory.mktemp("home")
    import_folder(Store(home), folder, name=NAME, trusted=False)
    artifact = Store(home).resolve(NAME)
    with (
        ready(artifact, device="cpu", size=16, slow_kernels=False, most_waiting=256) as model,
        serving(Api(model, (NAME,), 1024).app(None)) as found,
    ):
        yield f"{found}/v1"


def told(command: list[str], place: Path, **more: str) -> str:
    """What a program prints that ends well."""
    variables = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    variables |= {"HOME": str(place), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "OPENAI_API_KEY": "none"}
    done = subprocess.run(command, cwd=place, env=variables | more, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def asked(client: str, url: str, place: Path) -> dict[str, Any]:
    """Answers to a client in Python."""
    return json.loads(told([PYTHON, str(HERE / "asks.py"), client, url, NAME], place).splitlines()[-1])


def test_openai(url: str, tmp_path: Path) -> None:
    assert asked("openai", url, tmp_path) == {
        "chat": SAID, "finish": "stop", "stream": SAID, "call": CALL, "after the call": SAID, "parse": CITY,
        "parse a tool": CITY, "responses": SAID, "responses, streamed": [SAID, SAID], "responses, parsed": CITY,
        "responses, a call": [json.dumps(CALL[1])], "completions": f" {SAID}",
    }  # fmt: skip


def test_litellm(url: str, tmp_path: Path) -> None:
    assert asked("litellm", url, tmp_path) == {
        "chat": SAID, "stream": SAID, "call": CALL, "schema": {"city": CITY}, "responses": SAID,
    }  # fmt: skip


def test_langchain(url: str, tmp_path: Path) -> None:
    assert asked("langchain", url, tmp_path) == {
        "chat": SAID, "stream": SAID, "json_schema": CITY, "function_calling": CITY, "json_mode": CITY,
        "call, None": [CALL], "call, any": [CALL], "call, where": [CALL], "responses": SAID, "responses, schema": CITY,
    }  # fmt: skip


def test_pydantic_ai(url: str, tmp_path: Path) -> None:
    kinds = {"text": SAID, "output_type": CITY, "native": CITY, "tool": SAID}
    wanted = {f"{model}, {kind}": right for model in ("OpenAIChatModel", "OpenAIResponsesModel")
              for kind, right in kinds.items()}  # fmt: skip
    assert asked("pydantic_ai", url, tmp_path) == wanted | {"stream": SAID}


def test_instructor(url: str, tmp_path: Path) -> None:
    assert asked("instructor", url, tmp_path) == {"TOOLS": CITY, "JSON": CITY, "JSON_SCHEMA": CITY}


def test_inspect_ai(url: str, tmp_path: Path) -> None:
    wanted = {f"{provider}, {kind}": ["success", 1.0] for provider in ("openai-api/local", "openai")
              for kind in ("plain", "tool")}  # fmt: skip
    assert asked("inspect_ai", url, tmp_path) == wanted


def npm(client: str, url: str, place: Path) -> dict[str, Any]:
    """Answers to a client of npm."""
    if not NPM:
        pytest.skip("npm is not on this machine, so its packages are not asked")
    # node looks for packages in the folders above a program
    program = shutil.copy(HERE / "asks.mjs", NPM)
    return json.loads(told(["node", program, client, url, NAME], place).splitlines()[-1])


def test_openai_of_npm(url: str, tmp_path: Path) -> None:
    assert npm("openai", url, tmp_path) == {
        "chat": SAID, "stream": SAID, "parse": {"city": CITY}, "tool": SAID, "responses": SAID,
        "responses, parsed": {"city": CITY},
    }  # fmt: skip


def test_ai_of_vercel(url: str, tmp_path: Path) -> None:
    home = {"city": CITY}
    wanted = {
        "text": SAID, "stream": SAID, "object": home, "streamed object": [home, home], "output": home,
        "tool": [2, SAID], "forced tool": [CALL], "second question": SAID,
    }  # fmt: skip
    assert npm("ai", url, tmp_path) == dict.fromkeys(("openai", "openai.chat", "compatible"), wanted)


CHAT_TASK = """
task: homes
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n\\n"]}
metric_list: [{metric: exact_match}]
"""
CHOICE_TASK = """
task: cities
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_target: "{{cities.index(city)}}"
doc_to_choice: "{{answers}}"
metric_list: [{metric: acc}]
"""


@pytest.mark.parametrize(
    ("kind", "task", "metric"),
    [("local-chat-completions", "homes", "exact_match,none"), ("local-completions", "cities", "acc,none")],
)
def test_lm_eval(url: str, folder: Path, tmp_path: Path, kind: str, task: str, metric: str) -> None:
    cities = list(HOMES.values())
    rows = [{"question": question(name), "answer": f"In {city}.", "city": city, "cities": cities,
             "answers": [f"In {one}." for one in cities]} for name, city in HOMES.items()]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "homes.yaml").write_text(CHAT_TASK)
    (tmp_path / "cities.yaml").write_text(CHOICE_TASK)
    chats = kind == "local-chat-completions"
    place = f"base_url={url}/{'chat/' if chats else ''}completions,model={NAME}"
    options = ["--apply_chat_template"] if chats else []
    command = [str(Path(PYTHON).with_name("lm_eval")), "run", "--model", kind, "--model_args"]
    command += [place if chats else f"{place},tokenizer={folder}", "--tasks", task, "--include_path", "."]
    told([*command, "--output_path", "out", *options], tmp_path)
    (results,) = (tmp_path / "out").rglob("results*.json")
    assert json.loads(results.read_text())["results"][task][metric] == 1.0


def test_guidellm(url: str, folder: Path, tmp_path: Path) -> None:
    command = [str(Path(PYTHON).with_name("guidellm")), "run", "--backend"]
    command += [f"kind=openai_http,target={url.removesuffix('/v1')}", "--data"]
    command += ["kind=synthetic_text,prompt_tokens=16,output_tokens=8", "--tokenizer"]
    command += [f"kind=huggingface_auto,model={folder}", "--profile", "kind=synchronous"]
    command += ["--constraint", "kind=max_requests,count=3", "--output", "kind=json,path=found.json"]
    told(command, tmp_path)
    (found,) = json.loads((tmp_path / "found.json").read_text())["benchmarks"]
    requests = found["requests"]
    assert (len(requests["successful"]), len(requests["errored"])) == (3, 0)
    assert all(one["output_tokens"] == 8 for one in requests["successful"])
