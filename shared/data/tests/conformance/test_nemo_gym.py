"""Our small server against NeMo-Gym itself: the same answers to the same requests, call by call."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nemotron_data.formats.rl_rows import RLRow
from nemotron_data.gym.catalogue import find_environment, in_wheel
from nemotron_data.gym.client import Answer, Client, Cookies
from nemotron_data.gym.play import play
from nemotron_data.gym.server import serving
from nemotron_data.synthetic.episodes import LOGIC, beginnings

pytestmark = pytest.mark.nemo_gym
ROW = next(beginnings("drawers", 5, 1))


def response(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}
    about = {"id": "r", "created_at": 0, "model": "m", "object": "response", "tool_choice": "auto", "tools": []}
    return {"response": about | {"output": [message], "parallel_tool_calls": True}}


@pytest.fixture(scope="module", params=["drawers", "nemo_gym:drawers"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    environment = find_environment(request.param)
    with serving(environment, tmp_path_factory.mktemp("logs") / "log") as server:
        yield Client(server.port, timeout=60, connections=1)


def ask(client: Client, path: str, body: dict[str, Any], cookies: Cookies) -> Answer:
    (found,) = client.post([(path, body, cookies)])
    assert isinstance(found, Answer), found
    return found


def test_calls_are_answered_with_the_same_bytes(client: Client) -> None:
    cookies: Cookies = {}
    assert ask(client, "/seed_session", ROW, cookies).body == b"{}"
    (find, arguments), (_, box), key = LOGIC["drawers"].solution(ROW)
    assert ask(client, f"/{find}", arguments, cookies).text == f'{{"box":"{box["box"]}"}}'
    assert ask(client, "/open", box, cookies).text == f'{{"key":"{key}"}}'
    for path, body, status in (("/find", {"nam": "5"}, 422), ("/find", {"name": 5}, 422), ("/nothing", {}, 404)):
        assert ask(client, path, body, cookies).status == status
    verified = ask(client, "/verify", ROW | response(key), cookies).fields()
    assert {name: verified[name] for name in ("reward", "used_tools", "world")} == {
        "reward": 1.0, "used_tools": False, "world": ROW["world"],
    }  # fmt: skip


@pytest.mark.parametrize("name", list(LOGIC))
def test_episodes_are_the_same(name: str, tmp_path: Path) -> None:
    row = RLRow.of(next(beginnings(name, 6, 1)))
    for turns in ([], ["pink"]):
        ours, theirs = (list(play(place, row, turns, tmp_path))[1:] for place in (name, f"nemo_gym:{name}"))
        assert ours == theirs


def test_servers_of_the_wheel_are_played(tmp_path: Path) -> None:
    assert len(in_wheel()) > 90
    environment = find_environment("example_session_state_mgmt")
    agent = {"type": "responses_api_agents", "name": next(iter(environment.agents))}
    tools = [{"type": "function", "name": name, "description": "", "strict": True,
              "parameters": {"type": "object", "properties": {}}}
             for name in ("increment_counter", "get_counter_value")]  # fmt: skip
    prompt = {"input": [{"role": "user", "content": "add 3"}], "tools": tools}
    row = {"responses_create_params": prompt, "initial_count": 4, "expected_count": 7, "agent_ref": agent}
    turns = ['<tool_call>{"name": "increment_counter", "arguments": {"count": 3}}</tool_call>', "done"]
    *_, last = play("example_session_state_mgmt", RLRow.of(row), turns, tmp_path)
    assert last == "reward 1"
