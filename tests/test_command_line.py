"""The `nemotron` command: what it understands, and how it says that it does not."""

import re
import sys
from pathlib import Path

import pytest
from support import last_json, nemotron, script

from nemotron_app.help import usage
from nemotron_app.main import OTHER_COMMANDS
from nemotron_shared.system.process import COMMANDS, UNDER_UV, as_typed

HEAVY = ("torch", "transformers", "numpy", "hydra", "pydantic", "pyarrow", "tokenizers", "jinja2", "rich")


def test_help_imports_nothing_heavy(run) -> None:
    code = (
        "import sys; from nemotron_app.main import main; main(['--help']); "
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    result = run(sys.executable, "-c", code)
    assert "nemotron super3 pipeline -c tiny" in result.stdout
    assert result.stderr.strip() == "[]"


def _completions(run, line: str, **environment: str) -> str:
    """The answer to a shell that leaves words with `=` whole, as fish and zsh do."""
    last = line.rpartition(" ")[2]
    shell = {"_NEMOTRON_COMPLETE": "fish_complete", "COMP_WORDS": line, "COMP_CWORD": last}
    answer = run(*nemotron(), env=shell | environment).stdout
    return re.sub(r"\t.*", "", answer)  # without descriptions


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nemotron su", ["super3", "super49b"]),
        ("nemotron super3 p", ["pipeline", "pretrain"]),
        ("nemotron super3 data prep s", ["sft"]),
        ("nemotron super3 sft --dr", ["--dry-run"]),
        ("nemotron runs st", ["stop"]),
        ("nemotron super3 sft -c ti", ["tiny"]),
        ("nemotron super3 sft train.micro", ["train.micro_batch_size="]),
        ("nemotron super3 rl -c tiny grpo.max_new", ["grpo.max_new_tokens="]),
        ("nemotron config di", ["diff"]),
        ("nemotron super3 rl engine=n", ["engine=nemo_rl"]),
        ("nemotron plan sft/tiny engine=auto", ["engine=automodel"]),
        ("nemotron super3 eval -c h", ["held_out"]),
        ("nemotron config show sft/ti", ["sft/tiny"]),
        ("nemotron config explain grpo.te", ["grpo.temperature"]),
        ("nemotron super3 pipeline sft.optimizer.l", ["sft.optimizer.lr="]),
        ("nemotron plan rl/tiny grpo.te", ["grpo.temperature="]),
    ],
)
def test_a_shell_completes_the_command(run, line: str, expected: list[str]) -> None:
    assert _completions(run, line).split() == [f"plain,{word}" for word in expected]


def test_bash_completes_by_the_script_that_it_is_given(run) -> None:
    script = f"""
    complete() {{ :; }}
    {run(*nemotron("completion", "bash")).stdout}
    COMP_WORDS=(nemotron super3 sft -c ti) COMP_CWORD=4
    _nemotron_completion {Path(sys.executable).with_name("nemotron")}
    echo "${{COMPREPLY[@]}}"
    """
    assert run("bash", "-c", script).stdout == "tiny\n"


def test_a_shell_offers_what_is_in_the_store_and_no_config_of_another_stage(run, tmp_path: Path) -> None:
    folder = tmp_path / "artifacts" / "super3-sft-model" / "v1"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")

    def offered(line: str) -> str:
        return _completions(run, line, NEMOTRON_HOME=str(tmp_path))

    assert offered("nemotron artifacts show super3-s") == "plain,super3-sft-model\n"
    assert "plain,tiny" in offered("nemotron super3 sft -c ") and "held_out" not in offered("nemotron super3 sft -c ")
    assert offered("nemotron super3 sft optimizer.lr=").strip() == ""
    assert offered("nemotron chat ") == "plain,sft\nplain,super3-sft-model\n"
    assert offered("nemotron super3 sft run.model=") == "plain,run.model=sft\nplain,run.model=super3-sft-model\n"
    assert offered("nemotron super3 sft run.model=./m") == "file,run.model=./m\n"
    assert offered("nemotron finetune super3-sft-model ch") == "file,ch\n"
    assert offered("nemotron super3 sft data_prep.source=") == "file,data_prep.source=\n"
    assert offered("nemotron data inspect super3-sft-m") == "file,super3-sft-m\n"


def test_the_help_names_every_command() -> None:
    for name in OTHER_COMMANDS:
        assert re.search(rf"^  {name} ", usage(), re.MULTILINE), name
    assert set(OTHER_COMMANDS) == set(COMMANDS)


@pytest.mark.parametrize(("variables", "typed"), [({}, "nemotron"), ({UNDER_UV: "1"}, "uv run nemotron")])
def test_commands_are_printed_as_they_can_be_typed(run, variables: dict[str, str], typed: str) -> None:
    done = run(*nemotron("runs", "rm", "nowhere"), ok=False, env=variables)
    assert done.returncode == 2 and f"\n  see: {typed} runs --all" in done.stderr


def test_only_commands_are_printed_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(UNDER_UV, "1")
    for text in (
        "/opt/nemotron chat",
        "uv run nemotron chat",
        "nemotron-sft needs it",
        "nemotron is a model",
        "nemotron chats",
        "nemotron 0.3",
    ):
        assert as_typed(text) == text
    assert as_typed("say: nemotron chat; or\nnemotron super3 rl") == (
        "say: uv run nemotron chat; or\nuv run nemotron super3 rl"
    )


def test_the_version_is_the_package_version(run) -> None:
    assert run(*nemotron("--version")).stdout.startswith("nemotron 0.")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["suppr3", "sft"], "did you mean 'super3'"),
        (["super3", "stf"], "did you mean 'sft'"),
        (["super3"], "super3 needs a command"),
        (["nano3", "finetune", "--help"], "say it without nano3: nemotron finetune"),
        (["super3", "model", "eval"], "say: nemotron super3 eval"),
        (["model", "eval", "super3-sft-model"], "say: nemotron super3 eval"),
        (["super3", "check", "sft"], "say it without super3: nemotron check"),
        (["check", "results/nope"], "results/nope: no such file or folder, and no artifact"),
        (["nano3", "finetun", "--help"], "no command 'finetun' for nano3"),
        (["super3", "data", "prep", "srt"], "say: data prep"),
        (["super3", "sft", "tiny"], "for the config: -c tiny"),
        (["super3", "sft", "tinny"], "overrides are written key=value"),
        (["sft", "-c", "tiny"], "say: nemotron super3 sft -c tiny"),
        (["artifacts", "shwo"], "did you mean 'show'?"),
        (["pipelin"], "did you mean 'pipeline', after a model: super3?"),
        (["artifact", "list"], "did you mean 'artifacts'?"),
        (["super49b", "sft", "-c", "tiny"], "--allow-experimental"),
        (["super49b", "pretrain", "--allow-experimental"], "has no pretrain stage"),
        (["super3", "sft", "-c", "tny"], "did you mean 'tiny'"),
        (["super3", "sft", "-c", "tiny", "optimizer.lrr=1"], "did you mean 'optimizer.lr'"),
        (["super3", "sft", "-c", "tiny", "+optimizer.lrr=1"], "did you mean 'lr'"),
        (["super3", "sft", "-c", "tiny", "optimizer.learning_rate=1"], "did you mean 'optimizer.lr'"),
        (["super3", "sft", "-c", "tiny", "+train.learning_rate=1"], "did you mean 'optimizer.lr'"),
        (["super3", "rl", "-c", "tiny", "num_generations=4"], "did you mean 'grpo.num_generations_per_prompt'"),
        (["super3", "rl", "-c", "dpo_tiny", "dpo.beta=0.2"], "did you mean 'dpo.reference_policy_kl_penalty'"),
        (["super3", "rl", "-c", "tiny", "beta=0.2"], "did you mean 'grpo.reference_policy_kl_penalty'"),
        (
            ["super3", "rl", "-c", "tiny", "algorithm=gspo"],
            "unknown key 'algorithm'\n  it is none of: checkpoint, data_",
        ),
        (["super3", "data", "prep", "sft", "-c", "tiny", "algorithm=gspo"], "line (algorithm): data_prep.algorithm: "),
        (
            ["super3", "rl", "-c", "tiny", "grpo.sequence_level_importance_ratios=true", "grpo.loss_type=sapo"],
            "command line: grpo.sequence_level_importance_ratios gives",
        ),
        (["super3", "rl", "-c", "tiny", "grpo.overlong_buffer_penalty=1"], "command line: set grpo.overlong_buffer_"),
        (["artifacts", "show", "super3-sft-model"], "super3-sft-model"),
        (["super3", "pretrain", "-c", "phase2"], "no config named 'phase2'"),
        (["super3", "sft", "-c", "lora"], "did you mean 'super3_lora'?"),
        (["ultra3", "data", "prep", "rl"], "say: nemotron ultra3 data prep rl -c local"),
        (["ultra3", "pipeline"], "ultra3 has no recipe for rl"),
        (["super3", "eval", "-c", "tiny", "train.train_iters=3"], "unknown key 'train.train_iters'"),
        (["super3", "sft", "-c", "tiny", "optimizer.lrr=@x"], "did you mean 'optimizer.lr'"),
        (["super3", "sft", "-c", "tiny", "+run.modle=x"], "did you mean 'model'"),
        (["super3", "pipeline", "-c", "tiny", "optimizer.lrr=1"], "did you mean 'optimizer.lr'"),
        (["super3", "pipeline", "-c", "tiny", "eval.evaluation.taskz=3"], "eval: command line: unknown key"),
        (["super3", "pipeline", "-c", "tiny", "rl.train.train_iters=many"], "rl: command line: train.train_iters"),
    ],
)
def test_a_mistake_is_one_clear_error(run, words: list[str], message: str) -> None:
    result = run(*nemotron(*words), ok=False)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stderr.count("error:") == 1
    assert result.stderr.lower().count("did you mean") <= 1


def test_a_dry_run_shows_origins_inputs_and_command(run) -> None:
    text = run(*nemotron("super3", "sft", "-c", "tiny", "optimizer.lr=1e-3", "--dry-run")).stdout
    assert "# tiny.yaml:" in text
    assert "# command line" in text
    assert "model: super3-pretrain-model:latest (missing: would start from random weights)" in text
    assert "-m stages.sft.train -c tiny optimizer.lr=1e-3" in text


def test_a_dry_run_of_what_cannot_run_exits_non_zero_and_says_why(run) -> None:
    result = run(*nemotron("super3", "sft", "--dry-run"), ok=False)
    assert result.returncode == 1
    assert "make it: nemotron super3 data prep sft" in result.stdout
    assert "make it: nemotron super3 pretrain" in result.stdout


def test_a_dry_run_writes_nothing(run, tmp_path) -> None:
    run(*nemotron("super3", "sft", "-c", "tiny", "--dry-run"))
    run(*script("pretrain", "data_prep"), "-c", "tiny", "--dry-run")
    assert list(tmp_path.iterdir()) == []


def test_options_stand_before_or_after(run) -> None:
    before = run(*nemotron("-c", "tiny", "--dry-run", "--json", "super3", "rl"))
    after = run(*nemotron("super3", "rl", "--json", "--config", "tiny", "-d"))
    assert last_json(before)["config"] == last_json(after)["config"]


def test_tasks_reach_the_config(run) -> None:
    preview = last_json(run(*nemotron("super3", "eval", "-c", "tiny", "-t", "sums", "-t", "prose", "-d", "--json")))
    assert preview["config"]["evaluation"]["tasks"] == ["sums", "prose"]
