"""No code of a stranger runs unasked: neither a model's own, nor what lies in the folder that one stands in."""

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ASKING = {"from_pretrained", "from_config"}


def calls() -> list[tuple[str, bool]]:
    found = []
    for file in sorted([*ROOT.glob("shared/*/src/**/*.py"), *ROOT.glob("stages/**/*.py")]):
        if "tests" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKING:
                owner = ast.unparse(node.func.value)
                if owner.startswith(("Auto", "class_of(")) and owner != "AutoBridge":
                    given = next((word.value for word in node.keywords if word.arg == "trust_remote_code"), None)
                    says = given is not None and not (isinstance(given, ast.Constant) and given.value is None)
                    found.append((f"{file.relative_to(ROOT)}:{node.lineno}", says))
    return found


def test_every_call_says_whether_code_may_run() -> None:
    found = calls()
    assert len(found) >= 9
    assert [place for place, says in found if not says] == []


def test_modules_in_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    """Where somebody has unpacked a model and stands in its folder."""
    for name in ("hydra", "jinja2", "numpy", "omegaconf", "pydantic", "torch", "yaml"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')")
    answer = "{% generation %}{{ one.content }}\n{% endgeneration %}"
    (tmp_path / "chat.jinja").write_text(
        "{% for one in messages %}{% if loop.first %}Q: {{ one.content }}\n{% else %}"
        + answer
        + "{% endif %}{% endfor %}"
    )
    (tmp_path / "rows.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "3"}]}'
    )
    words = [
        "data_prep.source=rows.jsonl",
        "data_prep.chat_template=./chat.jinja",
        "data_prep.split={train: 1, valid: 0, test: 0}",
    ]
    done = subprocess.run(
        [Path(sys.executable).with_name("nemotron"), "super3", "data", "prep", "sft", "-c", "tiny", *words],
        cwd=tmp_path, env=os.environ | {"NEMOTRON_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert done.returncode == 0, done.stderr
