"""Episodes with servers that run: who said which token, what ends an episode, and what a failure does."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemotron_data.formats.rl_rows import RLRow
from nemotron_data.gym.catalogue import config_for_runner, find_environment, new_environment
from nemotron_data.gym.client import Answer, Failure, Post
from nemotron_data.gym.episodes import Environments, Episode, Loop, Sampled
from nemotron_data.gym.play import END, Characters, as_call, play
from nemotron_data.gym.replay import differing
from nemotron_data.synthetic.episodes import LOGIC, beginnings
from nemotron_shared.config.environments import EnvironmentsSection
from nemotron_shared.system.errors import UserError

FAULTY = """
import os, time
SECRET = os.urandom(8).hex()
def tool(name):
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    return {"type": "function", "name": name, "description": "", "parameters": schema}
TOOLS = [tool(name) for name in ("echo", "large", "sleep", "die", "fail", "refuse", "leave", "set", "draw", "secret")]
class Episode:
    def __init__(self, row): self.row = row
    def echo(self, text: str) -> dict: return {"text": text}
    def large(self, text: str) -> dict: return {"text": "x" * (1 << 20)}
    def draw(self, text: str) -> dict: return {"drawn": os.urandom(8).hex()}
    def secret(self, text: str) -> dict: return {"secret": SECRET}
    def sleep(self, text: str) -> dict: time.sleep(300)
    def die(self, text: str) -> dict: os._exit(7)
    def fail(self, text: str) -> dict: raise RuntimeError("broken inside")
    def refuse(self, text: str) -> dict: raise ValueError("refused inside")
    def set(self, text: str) -> dict: return {1, 2}
    def leave(self, text: str) -> dict: raise SystemExit
    def verify(self, answer: str, output: list) -> dict:
        broken = {"nan": float("nan"), "huge": 10**400}
        masked = {"mask_sample": answer == "judge", "failure_reason": "no judge" if answer == "judge" else None}
        return {"reward": broken.get(answer, float(answer == "right")), "items": len(output)} | masked
    def shout(self, text: str) -> dict:
        print(text * (1 << 20), flush=True)
        os.system("echo a child")
        return {}
TOOLS.append(tool("shout"))
print("loaded", flush=True)
"""


@pytest.fixture
def faulty(tmp_path: Path) -> str:
    """An environment whose tools fail in their ways."""
    folder = new_environment("faulty", tmp_path)
    (folder / "faulty.py").write_text(FAULTY)
    return str(folder)


def row_of(name: str, tools: Sequence[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    told = [{"type": "function", "name": one, "description": "", "parameters": schema} for one in tools]
    prompt = {"input": [{"role": "user", "content": "?"}], "tools": told}
    agent = {"type": "responses_api_agents", "name": f"{name}_simple_agent"}
    return {"responses_create_params": prompt, "agent_ref": agent}


def section(name: str, **changes: Any) -> EnvironmentsSection:
    usual = {"servers": [name], "max_turns": 4, "max_episode_tokens": 1000, "show_tools": False,
             "timeout_seconds": 60.0, "connections": 4, "on_failure": "stop"}  # fmt: skip
    return EnvironmentsSection(**usual | changes)


def played(
    settings: EnvironmentsSection,
    rows: Sequence[dict[str, Any]],
    turns: Sequence[Sequence[str]],
    folder: Path,
    turn_tokens: int = 100,
    meanwhile: Callable[[Environments], None] = lambda environments: None,
) -> list[Episode]:
    """Play rows, each with turns of its own; one without END is cut."""
    written: Any = Characters()
    with Environments(settings, folder / "logs") as environments:
        loop = Loop(environments, written, written, [END], turn_tokens)

        def sample(live: Sequence[Episode], turn: int) -> list[Sampled]:
            meanwhile(environments)
            said = [turns[one.number][turn] for one in live]
            return [Sampled([ord(sign) for sign in text], [-1.0] * len(text), [1] * len(text)) for text in said]

        return loop.play([environments.ask(RLRow.of(row), written) for row in rows], sample)


def ended(text: str) -> str:
    return text + chr(END)


ECHO = ended(as_call("echo", {"text": "a"}))


def test_what_the_environment_says_is_marked_and_the_last_token_is_the_models(faulty: str, tmp_path: Path) -> None:
    (one,) = played(section(faulty), [row_of("faulty", ["echo"])], [[ECHO, ended("right")]], tmp_path)
    said = '{"text":"a"}'
    assert "".join(map(chr, one.ids)) == ECHO + said + ended("right")
    assert one.own == [1] * len(ECHO) + [0] * len(said) + [1] * 6
    assert [logp for logp, own in zip(one.logps, one.own, strict=True) if not own] == [0.0] * len(said)
    assert len(one.experts) == len(one.logps) == len(one.ids)
    assert (one.reward, one.ended, one.turns, one.figures) == (1.0, "answered", 2, {"items": 3.0})


@pytest.mark.parametrize("name", ["verify", "seed_session", "large", "../verify"])
def test_a_model_reaches_the_tools_of_its_row_and_nothing_else(faulty: str, tmp_path: Path, name: str) -> None:
    turns = [ended(as_call(name, {"text": "a", "response": {"output": []}})), ended("right")]
    (one,) = played(section(faulty), [row_of("faulty", ["echo"])], [turns], tmp_path)
    assert one.counts == {"calls": 1, "refused_calls": 1}
    assert f"there is no tool named '{name}'" in one.output[1]["output"]


def test_wrong_arguments_go_back_to_the_model_and_a_half_call_is_text(faulty: str, tmp_path: Path) -> None:
    rows = [row_of("faulty", ["echo"])] * 2
    turns = [[ended(as_call("echo", {"txt": "a"})), ended("right")], [ended("<tool_call>{nothing"), ""]]
    wrong, half = played(section(faulty), rows, turns, tmp_path)
    assert json.loads(wrong.output[1]["output"])["detail"][0]["loc"] == ["body", "text"]
    assert wrong.reward == 1.0
    assert (half.ended, half.turns, half.reward) == ("answered", 1, 0.0)


def test_limits_end_an_episode_and_are_told_apart(faulty: str, tmp_path: Path) -> None:
    rows = [row_of("faulty", ["echo", "large"])] * 3
    large = ended(as_call("large", {"text": "a"}))
    turns = [[ECHO] * 4, ["never ended"], [large]]
    found = played(section(faulty), rows, turns, tmp_path)
    assert [one.ended for one in found] == ["turns", "cut", "tokens"]
    assert all(one.own[-1] == 1 for one in found)
    (short,) = played(section(faulty, max_episode_tokens=160), rows[:1], turns[:1], tmp_path)
    assert (short.ended, short.turns) == ("tokens", 1), "a whole turn must still fit"
    assert len(short.ids) <= 160


@pytest.mark.parametrize(
    ("tool", "changes", "reason"),
    [
        ("sleep", {"timeout_seconds": 3.0}, "POST /sleep: no answer within 3 s"),
        ("fail", {}, 'status 500: {"detail":"faulty.py:16: RuntimeError: broken inside"}'),
        ("refuse", {}, 'status 500: {"detail":"faulty.py:17: ValueError: refused inside"}'),
        ("leave", {}, 'status 500: {"detail":"faulty.py:19: SystemExit: "}'),
        ("set", {}, "Object of type set is not JSON serializable"),
        ("die", {}, "its server ended (exit code 7)"),
    ],
)
def test_a_failure_stops_with_one_error(
    faulty: str, tmp_path: Path, tool: str, changes: dict[str, Any], reason: str
) -> None:
    turns = [ended(as_call(tool, {"text": "a"})), ended("right")]
    with pytest.raises(UserError) as error:
        played(section(faulty, **changes), [row_of("faulty", [tool])], [turns], tmp_path)
    assert error.value.message.startswith("environment 'faulty': ")
    assert reason in error.value.message
    assert ("on_failure=mask" in str(error.value.remedy)) == (tool != "die"), "nobody is left to answer"


def test_no_number_is_a_failure_and_a_masked_episode_is_counted(
    faulty: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, turns = [row_of("faulty", ["echo"])] * 2, [[ended("nan")], [ended("right")]]
    with pytest.raises(UserError, match="no finite reward: nan"):
        played(section(faulty), rows, turns, tmp_path)
    with pytest.raises(UserError, match="no finite reward: 1000"):
        played(section(faulty), rows[:1], [[ended("huge")]], tmp_path)
    found = played(section(faulty, on_failure="mask"), rows, turns, tmp_path)
    assert [one.ended for one in found] == ["failed", "answered"]
    assert "1 of 2 episodes failed and are left out; the last: environment 'faulty': POST /verify" in "".join(
        capsys.readouterr()
    )
    with pytest.raises(UserError, match="all 8 episodes of a batch failed"):
        played(section(faulty, on_failure="mask"), rows[:1] * 8, turns[:1] * 8, tmp_path)


def test_a_reward_that_the_environment_itself_does_not_trust_is_a_failure(faulty: str, tmp_path: Path) -> None:
    row, turns = row_of("faulty", ["echo"]), [ended("judge")]
    with pytest.raises(UserError, match="POST /verify: the environment says that it could not judge: no judge"):
        played(section(faulty), [row], [turns], tmp_path)
    found = played(section(faulty, on_failure="mask"), [row] * 2, [turns, [ended("right")]], tmp_path)
    assert [one.ended for one in found] == ["failed", "answered"]


@pytest.mark.parametrize("closes", [True, False])
def test_a_server_that_wants_it_is_told_the_end_of_each_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], closes: bool
) -> None:
    row, asked, post = next(beginnings("drawers_text", 5, 1)), list[str](), Environments.post

    def wants(self: Environments, name: str, posts: Sequence[Post]) -> list[Answer | Failure]:
        asked.extend(path for path, *_ in posts)
        answers = post(self, name, posts)
        if posts[0][0] != "/reset":
            return answers
        said = json.dumps({"observation": None, "info": {"supports_explicit_close": closes}}).encode()
        return [Answer("/reset", 200, said) for _ in answers]

    monkeypatch.setattr(Environments, "post", wants)
    found = played(section("drawers_text"), [row] * 2, [["cut"], [ended("pink")] * 4], tmp_path)
    assert asked.count("/reset") == 2 and asked.count("/close") == 2 * closes
    assert ("was not closed: POST /close: status 404" in "".join(capsys.readouterr())) == closes
    assert all(one.ended != "failed" for one in found), "the reward stands"


@pytest.mark.parametrize("policy", ["stop", "mask"])
def test_a_server_that_is_killed_in_the_middle_of_an_episode_is_one_error(
    faulty: str, tmp_path: Path, policy: str
) -> None:
    pids = []

    def kill(environments: Environments) -> None:
        (line,) = environments.told()
        pids.append(int(line.rsplit(" ", 1)[1]))
        os.kill(pids[0], signal.SIGKILL)

    with pytest.raises(UserError, match="ended \\(signal 9\\)"):  # nothing to mask: nobody will answer any more
        row, turns = row_of("faulty", ["echo"]), [ECHO, ended("right")]
        played(section(faulty, on_failure=policy), [row], [turns], tmp_path, meanwhile=kill)
    assert not is_alive(pids[0])


def is_alive(pid: int) -> bool:
    return subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", list(LOGIC))
def test_the_shipped_environments_reward_their_solution(name: str, tmp_path: Path) -> None:
    row = next(beginnings(name, 3, 1))
    *_, last = play(name, RLRow.of(row), [], tmp_path)
    assert last == "reward 1  used_tools 1"
    *_, last = play(name, RLRow.of(row), ["pink"], tmp_path)
    assert last == "reward 0  used_tools 0"


def test_a_turn_that_was_cut_is_a_move_and_the_last_one(tmp_path: Path) -> None:
    rows = list(beginnings("drawers_text", 3, 2))
    right, wrong = rows[0]["expected_answer"], "find 55"
    found = played(section("drawers_text"), rows, [[right], [wrong]], tmp_path)
    assert [(one.ended, one.turns, one.reward) for one in found] == [("cut", 1, 1.0), ("cut", 1, 0.0)]


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("echo", "replayable as far as 7 plays on two servers show"),
        ("draw", """not replayable: the same turns were answered with '{"drawn":"""),
        ("secret", """not replayable: the same turns were answered with '{"secret":"""),
    ],
)
def test_answers_that_do_not_follow_from_the_row_are_named(faulty: str, tmp_path: Path, tool: str, said: str) -> None:
    row, turns = RLRow.of(row_of("faulty", [tool])), [as_call(tool, {"text": "a"}), "right"]
    *_, reward, verdict = play(faulty, row, turns, tmp_path, again=3)
    assert reward.startswith("reward 1")
    assert verdict.startswith(said)


def test_only_the_same_turns_of_the_same_row_are_compared(faulty: str, tmp_path: Path) -> None:
    written: Any = Characters()
    turns = [[ended(as_call(tool, {"text": "a"})), ended("right")] for tool in ("draw", "draw", "echo", "echo")]
    rows = [row_of("faulty", ["draw", "echo"])] * 4
    one, other, *alike = played(section(faulty), rows, turns, tmp_path)
    assert not differing([one, other, *alike], written), "each row begins an episode of its own"
    for episode in (other, *alike):
        episode.asked = one.asked
    assert not differing([one, *alike], written)
    assert list(differing([one, *alike, other], written)) == ["faulty"]
    other.ended = "failed"
    assert not differing([one, *alike, other], written)
    alike[1].reward = 0.0
    assert differing(alike, written) == {"faulty": ("reward 1", "reward 0")}


def test_shipped_environments_are_known_to_be_replayable_and_new_ones_are_not(faulty: str) -> None:
    assert all(find_environment(name).known_replayable for name in LOGIC)
    assert not find_environment(faulty).known_replayable


def test_other_agents_are_left_to_another_engine(faulty: str, tmp_path: Path) -> None:
    config = Path(faulty) / "configs" / "faulty.yaml"
    config.write_text(config.read_text().replace("simple_agent:\n      entry", "swe_agents:\n      entry"))
    with pytest.raises(UserError, match="is a swe_agents") as error:
        played(section(faulty), [row_of("faulty", ["echo"])], [[ECHO]], tmp_path)
    assert "engine=nemo_rl" in str(error.value.remedy)


def test_names_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEMOTRON_ENGINES", str(tmp_path / "none"))
    with pytest.raises(UserError, match="no environment named 'drawer'") as error:
        find_environment("drawer")
    assert error.value.remedy == "did you mean 'drawers'?"
    with pytest.raises(UserError, match="no such folder"):
        find_environment("./nowhere")
    for wrong, why in (
        ("json", ": it is the name of a module of Python\n  take another name, such as my_json"),
        ("class", ": it is a word of the Python language\n  take another name, such as my_class"),
        ("3d", "\n  begin with a lower-case letter"),
        ("My", "\n  begin with a lower-case letter"),
    ):
        with pytest.raises(UserError, match=f"'{wrong}' cannot name an environment{why}"):
            new_environment(wrong)
    new_environment("mine")
    assert find_environment("mine").folder == tmp_path / "environments" / "mine"
    with pytest.raises(UserError, match="already"):
        new_environment("mine")
    (tmp_path / "environments" / "mine").rename(tmp_path / "environments" / "drawers")
    (tmp_path / "environments" / "drawers" / "mine.py").rename(tmp_path / "environments" / "drawers" / "drawers.py")
    with pytest.raises(UserError, match="two environments are named 'drawers'"):
        find_environment("drawers")


def test_nemo_gyms_runner_gets_an_environment_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = new_environment("mine")
    written = yaml.safe_load(Path(config_for_runner(find_environment("mine"), tmp_path / "run")).read_text())
    assert list(written["mine"]["resources_servers"]) == [str(tmp_path / folder)]
    own = yaml.safe_load((folder / "configs" / "mine.yaml").read_text())
    assert written["mine_simple_agent"] == own["mine_simple_agent"]


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ({"type": "function"}, "a tool has no name"),
        ({"type": "function", "name": "verify"}, "name: 'verify': the server itself has that path"),
        ({"type": "function", "name": "seed_session"}, "name: 'seed_session': the server itself"),
        ({"type": "function", "name": "echo/../verify"}, "name: 'echo/../verify': it cannot be part of a path"),
        ({"type": "function", "name": ".."}, "name: '..': it cannot be part"),
        ({"type": "function", "name": "echo"}, "two tools have the same name: echo"),
    ],
)
def test_a_rows_tool_cannot_lead_to_another_path(
    faulty: str, tmp_path: Path, tool: dict[str, Any], reason: str
) -> None:
    row = row_of("faulty", ["echo"])
    row["responses_create_params"]["tools"].append(tool)
    with pytest.raises(UserError, match=reason):
        list(play(faulty, RLRow.of(row, "rows.jsonl:1"), ["right"], tmp_path))


@pytest.mark.parametrize("name", ["self", "schema", "model_dump", "model_config", "_x", "__base__"])
def test_a_parameter_may_have_any_name(faulty: str, tmp_path: Path, name: str) -> None:
    logic = Path(faulty) / "faulty.py"
    told = f"def echo(this, {name}: str) -> dict: return {{'text': {name}}}"
    logic.write_text(logic.read_text().replace('def echo(self, text: str) -> dict: return {"text": text}', told))
    turns = [as_call("echo", {name: "a"}), as_call("echo", {name: 1}), "right"]
    _, _, _, said, _, refused, *_ = play(faulty, RLRow.of(row_of("faulty", ["echo"])), turns, tmp_path)
    assert said == '-> {"text":"a"}'
    assert json.loads(refused.removeprefix("-> "))["detail"][0]["loc"] == ["body", name]


@pytest.mark.parametrize("parameters", ["text", "*text: str", "**text: str", "text: str, /"])
def test_a_tool_whose_arguments_cannot_be_checked_does_not_start(faulty: str, tmp_path: Path, parameters: str) -> None:
    logic = Path(faulty) / "faulty.py"
    logic.write_text(logic.read_text().replace("def echo(self, text: str)", f"def echo(self, {parameters})"))
    with pytest.raises(UserError, match=r"does not start.*TypeError: tool 'echo': name each parameter and annotate it"):
        list(play(faulty, RLRow.of(row_of("faulty", ["echo"])), ["right"], tmp_path))


@pytest.mark.parametrize("turns", [[], ["right"]])
def test_an_environment_that_ends_python_is_one_error(faulty: str, tmp_path: Path, turns: list[str]) -> None:
    (Path(faulty) / "faulty.py").write_text("\nraise SystemExit(0)\n")
    with pytest.raises(UserError, match=r"RuntimeError: faulty\.py:2: SystemExit: 0"):
        list(play(faulty, RLRow.of(row_of("faulty", [])), turns, tmp_path))


def test_the_environments_are_served_by_one_file() -> None:
    drawers, in_turns = (find_environment(name).folder / "app.py" for name in ("drawers", "drawers_text"))
    assert drawers.read_bytes() == in_turns.read_bytes()


TURNS = """
import json
class Episode:
    def __init__(self, row): self.row = row
    def reset(self): return None
    def step(self, text):
        if text == "tuple": return "", 0.0, True, False, {}
        if text == "bare": return {"reward": 1.0}
        return {"reward": 1.0, "terminated": True, "info": json.loads(text)}
"""


@pytest.mark.parametrize(
    "said", ["tuple", "bare", '"won"', '{"tool_outputs": 1}', '{"tool_outputs": ["won"]}', '{"tool_outputs": [{}]}']
)
def test_a_step_that_returns_something_else_is_told_what_it_must_return(tmp_path: Path, said: str) -> None:
    folder = new_environment("turns", tmp_path)
    (folder / "turns.py").write_text(TURNS)
    config, row = folder / "configs" / "turns.yaml", row_of("turns", [])
    with pytest.raises(UserError, match=r"/seed_session: status 404.*this environment has /reset, /step"):
        list(play(str(folder), RLRow.of(row), [said], tmp_path))
    config.write_text(config.read_text().replace("simple_agent", "gymnasium_agent"))
    row["agent_ref"]["name"] = "turns_gymnasium_agent"
    message = (
        "TypeError: step must return .*reward.*, and returned" if said in ("tuple", "bare") else "info is not an object"
    )
    with pytest.raises(UserError, match=message):
        list(play(str(folder), RLRow.of(row), [said], tmp_path))


def test_a_try_shows_the_opening_and_names_turns_that_were_not_played(tmp_path: Path) -> None:
    folder = new_environment("turns", tmp_path)
    config, row = folder / "configs" / "turns.yaml", row_of("turns", [])
    config.write_text(config.read_text().replace("simple_agent", "gymnasium_agent"))
    row["agent_ref"]["name"] = "turns_gymnasium_agent"
    ending = """
class Episode:
    def __init__(self, row): pass
    def reset(self): return "Guess."
    def step(self, text): return {"reward": 1.0, "terminated": True}
"""
    (folder / "turns.py").write_text(ending)
    lines = list(play(str(folder), RLRow.of(row), ["8", "9", "7"], tmp_path))
    assert lines[-4:] == ["-> Guess.", "8", "reward 1", "the episode ended before the last 2 of 3 turns"]
    (folder / "turns.py").write_text(ending.replace('"Guess."', "42"))
    with pytest.raises(UserError, match="reset must return a text or None, and returned 42"):
        list(play(str(folder), RLRow.of(row), ["8"], tmp_path))


def test_a_row_that_its_environment_cannot_read_is_named(faulty: str, tmp_path: Path) -> None:
    row = RLRow.of(row_of("faulty", ["fail"]), "rows.jsonl:7")
    with pytest.raises(UserError, match=r"broken inside.*\(the row rows.jsonl:7\)"):
        list(play(faulty, row, [as_call("fail", {"text": "b"})], tmp_path))
    unknown = RLRow.of(row_of("faulty", ["ecko"]), "rows.jsonl:8")
    with pytest.raises(UserError, match=r"rows.jsonl:8: environment 'faulty' has no tool 'ecko'"):
        list(play(faulty, unknown, ["right"], tmp_path))


def test_a_failed_try_shows_the_turns_before_and_the_line_of_the_environment(faulty: str, tmp_path: Path) -> None:
    turns = [as_call("echo", {"text": "a"}), as_call("fail", {"text": "b"})]
    lines = []
    with pytest.raises(UserError, match="broken inside") as error:
        for line in play(faulty, RLRow.of(row_of("faulty", ["echo", "fail"])), turns, tmp_path):
            lines.append(line)
    assert lines[-3:] == ['echo({"text": "a"})', '-> {"text":"a"}', 'fail({"text": "b"})']
    assert error.value.remedy == f"see {tmp_path / 'faulty.log'}"
    assert 'faulty.py", line 16, in fail' in (tmp_path / "faulty.log").read_text()


def test_what_an_environment_prints_is_in_its_log(faulty: str, tmp_path: Path) -> None:
    turns = [ended(as_call("shout", {"text": "a"})), ended("right")]
    (one,) = played(section(faulty), [row_of("faulty", ["shout"])], [turns], tmp_path)
    assert one.reward == 1.0, "more than a pipe holds"
    log = (tmp_path / "logs" / "faulty.log").read_text()
    assert log == "loaded\n" + "a" * (1 << 20) + "\na child\n"


def test_a_tools_answer_without_json_for_it_is_a_failure(faulty: str, tmp_path: Path) -> None:
    logic = Path(faulty) / "faulty.py"
    logic.write_text(logic.read_text().replace('return {"text": text}', 'return {"text": float(text)}'))
    with pytest.raises(UserError, match="Out of range float values are not JSON compliant"):
        list(play(faulty, RLRow.of(row_of("faulty", ["echo"])), [as_call("echo", {"text": "nan"})], tmp_path))
