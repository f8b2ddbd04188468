"""Our small server against NeMo-Gym itself: the same answers to the same requests, call by call."""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from nemotron_data.formats.rl_rows import RLRow, read_rl_rows, validate_prompt
from nemotron_data.gym.catalogue import (
    OTHER_ENGINE,
    TOOLS_AGENT,
    TURNS_AGENT,
    find_environment,
    in_wheel,
    new_environment,
)
from nemotron_data.gym.client import Answer, Client, Cookies
from nemotron_data.gym.play import as_call, play
from nemotron_data.gym.server import VERSIONS, serving
from nemotron_data.synthetic import counter
from nemotron_data.synthetic.episodes import LOGIC, beginnings
from nemotron_shared.system.errors import UserError

pytestmark = pytest.mark.nemo_gym
DOCUMENT = Path("docs/environments.md")
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


TURNS = """
class Episode:
    def __init__(self, row): self.left = 2
    def reset(self): return "go"
    def step(self, text):
        self.left -= 1
        return {"reward": 1.0, "terminated": not self.left, "observation": text, "info": {"left": self.left}}
"""
NAMES = """
TOOLS = [{"name": "echo"}]
class Episode:
    def __init__(this, row): pass
    def echo(this, self: str, model_config: int = 3, _x: int = 4) -> dict: return {"said": [self, model_config, _x]}
    def verify(this, answer, output): return {"reward": 1.0}
"""


def test_the_app_of_ones_own_environment_serves_turns_and_any_arguments(tmp_path: Path) -> None:
    folder = new_environment("mine", tmp_path)
    agent = {"type": "responses_api_agents", "name": "mine_simple_agent"}
    tool = {"type": "function", "name": "echo", "parameters": {"type": "object"}, "strict": False}
    prompt = {"input": [{"role": "user", "content": "?"}], "tools": [tool]}
    row = RLRow.of({"responses_create_params": prompt, "agent_ref": agent})
    (folder / "mine.py").write_text(NAMES)
    turns = [as_call("echo", {"self": "a", "_x": 5}), as_call("echo", {"self": 1}), "right"]
    ours, theirs = (list(play(f"{by}{folder}", row, turns, tmp_path))[1:] for by in ("", "nemo_gym:"))
    assert '-> {"said":["a",3,5]}' in ours and ours[-1] == theirs[-1] == "reward 1"
    assert [line for line in ours if "said" in line] == [line for line in theirs if "said" in line]
    assert all('"loc":["body","self"]' in "".join(lines) for lines in (ours, theirs))

    (folder / "mine.py").write_text(TURNS)
    config = folder / "configs" / "mine.yaml"
    config.write_text(config.read_text().replace("simple_agent", "gymnasium_agent"))
    row = RLRow.of({"responses_create_params": prompt, "agent_ref": agent | {"name": "mine_gymnasium_agent"}})
    ours, theirs = (list(play(f"{by}{folder}", row, ["a", "b"], tmp_path))[1:] for by in ("", "nemo_gym:"))
    assert ours == theirs
    assert ours[-1] == "reward 2  left 0"


def test_the_documents_count_the_servers_of_the_wheel() -> None:
    (page,) = [parent / DOCUMENT for parent in Path(__file__).parents if (parent / DOCUMENT).is_file()]
    kinds = Counter(kind_of(name) for name in in_wheel())
    assert sum(kinds.values()) == len(in_wheel()) > 90
    said = f"Of the wheel's {len(in_wheel())} servers, {kinds['ours']} name an agent whose loop is"
    more = f"{kinds['model']} ask a model of their own, such as a judge, {kinds['none']} name no agent, and "
    wanted = [f"| NeMo-Gym {VERSIONS[0]}'s {len(in_wheel())} |", said, f"{more}{kinds['others']} other agents"]
    assert [one for one in wanted if one not in page.read_text()] == []


def kind_of(name: str) -> str:
    """Whether a server of the wheel can be played here, and otherwise why not."""
    try:
        kinds = {agent.kind for agent in find_environment(f"nemo_gym:{name}").agents.values()}
    except UserError as error:
        assert error.remedy == OTHER_ENGINE, "nobody gives a server of the wheel another config"
        return "model" if "needs another model" in error.message else "none"
    return "ours" if kinds & {TOOLS_AGENT, TURNS_AGENT} else "others"


def test_servers_of_the_wheel_are_played(tmp_path: Path) -> None:
    environment = find_environment(counter.NAME)
    assert environment.known_replayable
    examples = [json.loads(line) for line in environment.examples.read_text().splitlines()]
    for row in [*counter.beginnings(5, 2), examples[0]]:
        assert row["responses_create_params"]["tools"] == examples[0]["responses_create_params"]["tools"]
        *said, reward = list(play(counter.NAME, RLRow.of(row), [], tmp_path))[1:]
        assert reward == "reward 1"
        demonstrated = counter.played(counter.Episode(row), counter.solution(row), row)
        answers = [f"-> {message['content']}" for message in demonstrated if message["role"] == "tool"]
        assert [line for line in said if line.startswith("->")] == answers
        guess = str(row["expected_count"])
        assert list(play(counter.NAME, RLRow.of(row), [guess], tmp_path))[-1] == "reward 0"


def test_a_server_that_deals_without_a_seed_is_named(tmp_path: Path) -> None:
    row = RLRow.of(next(counter.beginnings(5, 1)))
    *_, verdict = play(counter.NAME, row, [], tmp_path, again=3)
    assert verdict.startswith("replayable as far as 7 plays")
    environment = find_environment("blackjack")
    assert not environment.known_replayable
    (row,) = islice(read_rl_rows(environment.examples, check=validate_prompt), 1)
    *_, verdict = play("blackjack", row, ["<action>stand</action>"], tmp_path, again=3)
    assert verdict.startswith("not replayable")
