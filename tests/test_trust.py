"""No call of transformers leaves open whether a model's own code may run: it would ask on the terminal."""

import ast
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
