"""env.toml: found, read, merged, and every mistake in it told with its line."""

import re
import time
from pathlib import Path

import pytest
from support import ROOT

from nemotron_cluster.profiles import (
    PROFILES,
    RESERVED,
    Slurm,
    env_file,
    line_of,
    load_profile,
    merge_settings,
    profile_names,
    read_tables,
)
from nemotron_shared.system.errors import UserError

EXAMPLE = ROOT / "env.toml.example"
CLUSTER = """
[wandb]
project = "nemotron"

[base]
executor = "slurm"
account = "me"
partition = "batch"
nodes = 2
[base.env_vars]
A = "1"
B = "2"

[child]
extends = "base"
nodes = 4
env_vars = { B = "3" }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("NEMOTRON_ENV_FILE", raising=False)
    (tmp_path / "env.toml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(folder: Path, text: str, name: str = "x") -> str:
    (folder / "env.toml").write_text(text)
    with pytest.raises(UserError) as error:
        load_profile(name)
    return str(error.value)


def test_a_profile_extends_another_and_knows_where_each_key_stands(folder: Path) -> None:
    loaded = load_profile("child")
    assert isinstance(loaded.profile, Slurm)
    assert (loaded.profile.nodes, loaded.profile.account) == (4, "me")
    assert loaded.profile.env_vars == {"A": "1", "B": "3"}
    assert loaded.origins["nodes"] == "env.toml:16 [child]"
    assert loaded.origins["account"] == "env.toml:7 [base]"
    assert loaded.wandb is not None and loaded.wandb.project == "nemotron"


def test_the_file_is_found_upwards_or_by_the_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = folder / "a" / "b"
    deep.mkdir(parents=True)
    assert env_file(deep) == folder / "env.toml"
    (folder / "a" / "pyproject.toml").write_text("[tool.uv.workspace]\n")
    assert env_file(deep) is None
    monkeypatch.setenv("NEMOTRON_ENV_FILE", str(folder / "env.toml"))
    assert env_file(deep) == folder / "env.toml"
    monkeypatch.setenv("NEMOTRON_ENV_FILE", str(folder / "none.toml"))
    with pytest.raises(UserError, match="which does not exist"):
        env_file()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[x]\nexecutor = "slurm"\npartion = "a"', "env.toml:3 [x] unknown key 'partion'\n  did you mean 'partition'?"),
        ('[x]\nexecutor = "slrm"', "executor 'slrm' is unknown\n  did you mean 'slurm'?"),
        ('[x]\nexecutor = "slurm"\nnodes = "four"', "env.toml:3 [x] nodes: "),
        ('[x]\nexecutor = "slurm"\nnodes = 0', "env.toml:3 [x] nodes: "),
        ('[x]\nexecutor = "slurm"\ntime = "4 hours"', "write MINUTES, HH:MM:SS or D-HH:MM:SS"),
        ('[x]\nexecutor = "slurm"\nmounts = ["/a"]', "env.toml:3 [x] mounts.0: '/a' is not a mount"),
        ('[x]\nexecutor = "slurm"\naccount = "a\\nb"', "must be one line"),
        ('[x]\nexecutor = "slurm"\nextra_directives = ["rm -rf"]', "is not an option of sbatch"),
        ('[x]\nexecutor = "slurm"\ntunnel = "ssh"', "host: a tunnel over ssh needs the login node's name"),
        ('[x]\nexecutor = "slurm"\nntasks_per_node = 8\nnproc_per_node = 4', "says another number"),
        ('[x]\nexecutor = "lepton"', "lacks the key"),
        ('[x]\nextends = "y"', "extends 'y', which is not a profile"),
        ('[x]\nextends = "y"\n[y]\nextends = "x"', "in a circle: x -> y -> x"),
        ('[x]\nexecutor = "slurm"\n[x.env_vars]\n"1A" = "b"', "env_vars"),
        ("[x\n", "not valid TOML"),
        ("x = 1", "'x' stands outside of a table"),
        ('[y]\nexecutor = "local"', "no profile named 'x'"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_remedy(folder: Path, text: str, said: str) -> None:
    assert said in refused(folder, text)


def test_without_a_file_the_example_is_named(folder: Path) -> None:
    (folder / "env.toml").unlink()
    with pytest.raises(UserError, match=r"copy env\.toml\.example"):
        load_profile("x", folder)


def test_recipe_then_profile_then_command_line(folder: Path) -> None:
    loaded = merge_settings(
        load_profile("child"), {"nodes": 8, "qos": "high"}, {"partition": "debug"}, {"qos": "mine.yaml:3"}
    )
    assert isinstance(loaded.profile, Slurm)
    assert (loaded.profile.nodes, loaded.profile.qos, loaded.profile.partition) == (4, "high", "debug")
    assert loaded.origins["qos"] == "mine.yaml:3"
    with pytest.raises(UserError, match=r"run\.env has no key 'node'"):
        merge_settings(load_profile("child"), {}, {"node": 8}, {"node": "command line"})
    with pytest.raises(UserError, match="the profile says what kind of cluster"):
        merge_settings(load_profile("child"), {}, {"executor": "docker"}, {})


def test_the_example_is_right_and_names_every_key(folder: Path) -> None:
    file = folder / "env.toml"
    file.write_text(EXAMPLE.read_text())
    found = {name: load_profile(name) for name in profile_names(read_tables(file))}
    assert {loaded.profile.executor for loaded in found.values()} == set(PROFILES)
    text = EXAMPLE.read_text()
    written = set(re.findall(r"^(?:# )?([a-z_]+) = ", text, re.MULTILINE)) | set(
        re.findall(r"^\[[\w-]+\.(\w+)\]", text, re.M)
    )
    models = [*PROFILES.values(), *RESERVED.values()]
    known = {name for model in models for name in model.model_fields}
    assert known - written == set(), "keys that the example does not show"
    assert written - known == {"extends"}, "keys that do not exist"


def test_the_defaults_that_the_example_states_are_the_defaults() -> None:
    text = EXAMPLE.read_text()
    for key in ("gpus_option", "time", "signal_lead", "requeue", "launcher"):
        stated = re.search(rf"^{key} = ([^#\n]+)", text, re.MULTILINE)
        assert stated, key
        default = Slurm.model_fields[key].default
        assert stated[1].strip() == (f'"{default}"' if isinstance(default, str) else str(default).lower()), key


def test_lines_are_found_in_odd_files(tmp_path: Path) -> None:
    file = tmp_path / "env.toml"
    file.write_text('# x\n[ "a b" ]\nk = 1\n[x]\n"k" = 2\n k.z = 3\n')
    assert line_of(file, "x", "k") == 5
    assert line_of(file, "a b", "k") == 3


def test_a_file_of_many_keys_is_read_at_once_and_one_beyond_all_is_refused(folder: Path) -> None:
    keys = "".join(f"a{number} = 1\n" for number in range(9_000))
    (folder / "env.toml").write_text(f'[x]\nexecutor = "local"\n[x.set]\n{keys}')
    start = time.process_time()
    assert load_profile("x").origins["set.a8999"] == "env.toml:9003 [x]"
    assert time.process_time() - start < 20, "not each key by a reading of its own"
    assert "larger than 100,000 bytes" in refused(folder, f'[x]\nexecutor = "local"\n# {"x" * 100_000}')
