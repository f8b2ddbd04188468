"""NeMo-Gym's own agent, unmodified, plays the same episodes with `nemotron serve` as our evaluation does."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml
from support import learn_to_call_tools

from nemotron_data.gym.catalogue import NEMO_GYM, config_for_runner, find_environment
from nemotron_data.gym.server import serving
from nemotron_shared.machine.environments import environment_of
from stages.eval.train import main as evaluate

pytestmark = pytest.mark.nemo_gym
POLICY = "responses_api_models/vllm_model/configs/vllm_model.yaml"
MODEL = "super3-sft-model:v1"
EPISODES, TOKENS = 48, 48


@contextmanager
def started(command: list[str], log: Path, sign: str) -> Iterator[str]:
    """A process, and what it has said when `sign` is in it."""
    with log.open("w") as file, subprocess.Popen(command, stdout=file, stderr=file, cwd=log.parent) as process:
        try:
            while sign not in log.read_text():
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            yield log.read_text()
        finally:
            process.terminate()
            process.wait()


def resolved(programs: Path, folder: Path, *configs: str) -> dict[str, Any]:
    """What NeMo-Gym makes of these configs, with a free port for each server."""
    command = [str(programs / "ng_dump_config"), f"+config_paths=[{','.join(configs)}]", "+policy_api_key=none"]
    command += ["+policy_base_url=none", f"+policy_model_name={MODEL}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return yaml.safe_load(done.stdout)


def transcript(output: list[dict[str, Any]]) -> str:
    """An episode as the samples of an evaluation show it."""
    parts = []
    for item in output:
        if item["type"] == "function_call":
            parts.append(f"{item['name']}({item['arguments']})")
        elif item["type"] == "function_call_output":
            parts.append(f"-> {item['output']}")
        else:
            parts += [content["text"] for content in item["content"]]
    return " ".join(parts)


def test_its_agent_earns_the_same_rewards_with_our_server(tmp_path: Path) -> None:
    home = tmp_path / "home"
    learn_to_call_tools(home)
    limits = [f"evaluation.limit={EPISODES}", f"evaluation.max_new_tokens={TOKENS}", "evaluation.temperature=0",
              "evaluation.environments.max_episode_tokens=400"]  # fmt: skip  # its agent has no such limit
    assert evaluate(["-c", "drawers", f"run.home={home}", f"run.model={MODEL}", *limits]) == 0
    samples = (home / "artifacts/super3-eval-results/v1/samples/sft/drawers.jsonl").read_text().splitlines()
    ours = [(one["output"], one["score"]) for one in map(json.loads, samples)]
    assert 0 < sum(score for _, score in ours) < EPISODES

    known = environment_of(NEMO_GYM)
    assert known is not None and known.programs is not None
    environment = find_environment("drawers")
    config = resolved(known.programs, tmp_path, POLICY, config_for_runner(environment, tmp_path))
    serve = [sys.executable, "-m", "nemotron_app.main", "serve", MODEL, "--home", str(home), "--port", "0"]
    with (
        serving(environment, tmp_path / "environment.log") as server,
        started(serve, tmp_path / "serve", " at ") as said,
    ):
        (settings,) = config["drawers"]["resources_servers"].values()
        settings["port"] = server.port
        (policy,) = config["policy_model"]["responses_api_models"].values()
        policy["base_url"] = said.split(" at ")[1].split()[0] + "/v1"
        policy["return_token_id_information"] = False  # the dump hides it, as it hides every key with "token" in it
        policy["chat_template_kwargs"] = {"tools": None}  # the model knows them by heart, and was taught without them
        (tmp_path / "agents.yaml").write_text(yaml.safe_dump(config))
        program = Path(__file__).with_name("gym_agents.py")
        agents = [str(known.programs / "python"), str(program), str(tmp_path / "agents.yaml")]
        (agent,) = config["drawers_simple_agent"]["responses_api_agents"].values()
        rows = (home / "artifacts/super3-eval-data/v1/drawers.jsonl").read_text().splitlines()[:EPISODES]

        def play(line: str) -> tuple[str, float]:
            row = json.loads(line)["row"]
            row["responses_create_params"] |= {"temperature": 0.0, "max_output_tokens": TOKENS}
            body, url = json.dumps(row).encode(), f"http://127.0.0.1:{agent['port']}/run"
            with urlopen(Request(url, body, {"content-type": "application/json"})) as answer:
                result = json.load(answer)
            return transcript(result["response"]["output"]), result["reward"]

        with started(agents, tmp_path / "agents", "ready"), ThreadPoolExecutor(8) as at_once:
            theirs = list(at_once.map(play, rows))
    assert theirs == ours
