"""What `nemotron artifacts show` tells about one artifact."""

import json
from collections.abc import Sequence
from typing import Any

from humanize import naturalsize

from nemotron_app.plain import minute, print_details
from nemotron_shared.artifacts.artifact import Artifact
from nemotron_shared.artifacts.lineage import inputs
from nemotron_shared.artifacts.store import Store

FILES_SHOWN = 20


def print_artifact(store: Store, artifact: Artifact, also: Sequence[str]) -> None:
    """Print who made it, from what, how it scored and what it holds. `also` are its other names."""
    manifest, producer = artifact.manifest, artifact.manifest.producer
    made_from = [
        f"{found.role}: {found.label}" + (f"  [{found.problem}]" if found.problem else "")
        for found in inputs(store, artifact)
    ]
    files = [f"{name}  {naturalsize(entry.bytes)}" for name, entry in manifest.files.items()]
    if len(files) > FILES_SHOWN:
        files[FILES_SHOWN:] = [f"and {len(files) - FILES_SHOWN} more"]
    single = {
        "artifact": artifact.reference,
        "also": ", ".join(also),
        "type": manifest.type,
        "created": minute(manifest.created_at),
        "made by": f"{producer.stage} {producer.verb} {producer.stage_version}".strip(),
        "command": producer.command,
        "code": producer.git or producer.code_digest[:12],
    }
    print_details(
        [
            *((heading, [text] if text else []) for heading, text in single.items()),
            ("made from", made_from),
            ("metrics", _pairs(manifest.metrics)),
            ("metadata", _pairs(manifest.metadata)),
            ("fingerprint", [manifest.fingerprint]),
            ("digest", [manifest.digest]),
            ("path", [str(artifact.path)]),
            ("size", [naturalsize(artifact.size)]),
            ("files", files),
        ]
    )


def _pairs(values: dict[str, Any]) -> list[str]:
    return [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
