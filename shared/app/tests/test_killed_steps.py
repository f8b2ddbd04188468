"""What is said of a step that the system killed."""

import sys

import pytest

from nemotron_app.launch import KILLED_EXIT_CODE, run_process

KILLS_ITSELF = "import os, sys; os.kill(os.getpid(), int(sys.argv[1]))"


@pytest.mark.parametrize(
    ("module", "number", "remedy"),
    [
        ("stages.rl.train", 9, "run the same command again, with a smaller train.micro_batch_size if memory ran out"),
        ("stages.rl.train", 11, "run the same command again"),
        ("stages.rl.data_prep", 9, "run the same command again"),
        ("stages.eval.train", 9, "run the same command again"),
    ],
)
def test_a_training_without_memory_is_told_what_takes_less(
    capfd: pytest.CaptureFixture[str], module: str, number: int, remedy: str
) -> None:
    assert run_process([sys.executable, "-c", KILLS_ITSELF, str(number), module]) == KILLED_EXIT_CODE
    said = capfd.readouterr().err.splitlines()
    assert ("(out of memory?)" in said[0]) is (number == 9)
    assert said[1:] == [f"  what is saved is kept: {remedy}"]
