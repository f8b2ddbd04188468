"""Whatever a name, a path or an override holds, a shell gets the same words and runs nothing of them."""

import dataclasses
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jobs import job_of, profile_of

from nemotron_cluster.slurm.script import render
from nemotron_shared.errors import UserError

NASTY = "run.note=$(touch it-ran)`touch it-ran`'\";touch it-ran;#\\\n&|<>*?~!{a,b} \t é\u202e"
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(word=TEXTS, value=TEXTS, folder=TEXTS)
@example(word=NASTY, value=NASTY, folder="a b'c$(touch it-ran)")
def test_a_script_hands_on_exactly_what_it_was_given(tmp_path: Path, word: str, value: str, folder: str) -> None:
    job = dataclasses.replace(job_of(), command=("-m", "step", word), environment={"PLACE": value})
    place = PurePosixPath("/jobs") / re.sub(r"[\n\r/]|[^\x20-\x7e]", "-", folder)
    script = render(job, profile_of("slurm", account="a", partition="p", time="01:00:00"), place)
    read = subprocess.run(["bash", "-n"], input=script.encode(), capture_output=True, check=False)
    assert read.returncode == 0, read.stderr
    variables = script[script.index("\nfolder=") : script.rindex("\nsrun=(")]
    asked = f'{variables}\nprintf \'%s\\0\' "$folder" "$PLACE" "${{command[@]}}"'
    answer = subprocess.run(["bash"], input=asked.encode(), capture_output=True, cwd=tmp_path, check=True)
    expected = [str(place), value, "-m", "step", word]
    assert answer.stdout.split(b"\0")[:-1] == [text.encode() for text in expected]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("sign", ["\n", "\r", "\x1b", "\x85"])
def test_a_path_that_would_end_its_line_is_refused(sign: str) -> None:
    profile = profile_of("slurm", account="a", partition="p", time="01:00:00")
    with pytest.raises(UserError, match="control character in an option of sbatch"):
        render(job_of(), profile, PurePosixPath(f"/jobs/a{sign}touch it-ran;#"))
