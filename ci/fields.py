"""Write the table of names that an engine's library knows; run it in that engine's environment.

.engines/megatron/bin/python ci/fields.py megatron_bridge
.engines/automodel/bin/python ci/fields.py automodel
"""

import dataclasses
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "shared" / "engines" / "src" / "nemotron_engines" / "fields"


def of_megatron_bridge() -> dict[str, list[str]]:
    """Fields of Bridge's ConfigContainer and of its nested dataclasses."""
    from nemotron_engines.stand_ins.transformer_engine import install_stubs

    install_stubs()
    from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider  # ty: ignore[unresolved-import]
    from megatron.bridge.training.config import ConfigContainer  # ty: ignore[unresolved-import]

    from nemotron_engines.megatron_bridge.overrides import _hints, _members

    found = {"": [field.name for field in dataclasses.fields(ConfigContainer)]}
    for name, hint in _hints(ConfigContainer).items():
        sections = [one for one in _members(hint) if isinstance(one, type) and dataclasses.is_dataclass(one)]
        kinds = [HybridModelProvider] if name == "model" else sections
        if kinds:
            found[name] = sorted({field.name for kind in kinds for field in dataclasses.fields(kind)})
    return found


def of_automodel() -> dict[str, list[str]]:
    """Parameter names of the functions and classes behind Automodel's sections."""
    from nemotron_engines.automodel.overrides import READ, TAKERS, known_names

    return {section: sorted(known_names(section)) for section in ("", *TAKERS, *READ)}


def table(engine: str) -> str:
    """Content of an engine's table."""
    found = of_megatron_bridge() if engine == "megatron_bridge" else of_automodel()
    return json.dumps(found, indent=1) + "\n"


if __name__ == "__main__":
    (FOLDER / f"{sys.argv[1]}.json").write_text(table(sys.argv[1]), encoding="utf-8")
