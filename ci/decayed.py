"""The table of weight decay in docs/models.md, from the lists of parameters that a test keeps."""

from pathlib import Path

import yaml


def decay_table(file: Path) -> str:
    """A row for each architecture: the ends of names that decay, those that do not, and where transformers differs.

    Args:
        file: `shared/engines/tests/decayed.yaml`.
    """
    rows = [
        "| architecture | decayed | not decayed | of these, decayed by transformers' own Trainer |",
        "|---|---|---|---|",
    ]
    for name, lists in yaml.safe_load(file.read_text(encoding="utf-8")).items():
        cells = [_ends(lists[key]) for key in ("decayed", "not decayed", "otherwise by transformers")]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def _ends(lines: list[str]) -> str:
    """Names without layers, modules above and shapes, each once: `q_proj`, `experts.down_proj`, `conv1d.bias`."""
    found = {}
    for line in lines:
        parts = [
            part
            for part in line.partition(" ")[0].removesuffix(".weight").split(".")
            if part != "*" and not part.isdigit()
        ]
        whole = parts[-1] == "bias" or parts[-2:-1] == ["experts"]
        found[f"`{'.'.join(parts[-2:] if whole else parts[-1:])}`"] = None
    return ", ".join(found)
