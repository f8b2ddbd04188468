"""`nemotron model`: import a model or a tokenizer as an artifact.

    nemotron model import hf://org/name                  the current revision; run.model=hf://org/name does it, too
    nemotron model import hf://org/name@v2               a branch, tag or commit
    nemotron model import hf://org/name --tokenizer      only its tokenizer
    nemotron model import ./folder --as my-model         a Hugging Face folder; run.model=my-model finds it
    nemotron model import megatron:./iter_0002000        a checkpoint of Megatron, converted
    nemotron super3 model import sft ./folder            the same as --as super3-sft-model

Every import from the hub is verified against the hub's digests, and records its commit.
"""

from pathlib import Path

import click

from nemotron_app.store_options import Look, store_options
from nemotron_shared.artifacts.names import check_name
from nemotron_shared.models.hub import look_at
from nemotron_shared.models.importing import import_folder, import_hub, import_megatron
from nemotron_shared.models.references import HubModel, MegatronModel, parse_outside, spelled_out
from nemotron_shared.system.console import say
from nemotron_shared.system.errors import UserError


@click.group("model", help="\b\n" + __doc__.replace("\n\n", "\n\n\b\n"))
def command() -> None:
    """See the module docstring."""


@command.command("import")
@click.argument("reference", metavar="hf://ORG/NAME[@REVISION]|PATH|megatron:PATH")
@click.option("--as", "name", metavar="NAME", help="name of the artifact (a folder or a checkpoint)")
@click.option("--tokenizer", is_flag=True, help="the tokenizer alone (hf://)")
@click.option("--trust-code", is_flag=True, help="take the Python files along that the model cannot do without")
@store_options
def import_(look: Look, reference: str, name: str | None, tokenizer: bool, trust_code: bool) -> int:
    """Import a model as an artifact."""
    meant, note = spelled_out(reference, look.store, look.family)
    if note:
        say(note)
    outside = parse_outside(meant)
    if name is not None:
        check_name(name)
    if isinstance(outside, HubModel):
        if name is not None:
            what = "a model of the hub is named after its repository, so that hf:// finds it again"
            raise UserError(what, f"leave --as out; use it as run.model={meant}")
        artifact = import_hub(look.store, look_at(outside, weights=not tokenizer, trusted=trust_code))
    elif isinstance(outside, MegatronModel):
        artifact = import_megatron(look.store, outside, name)
    else:
        artifact = import_folder(look.store, Path(reference).expanduser(), name=name, trusted=trust_code)
    look.tell({"artifact": artifact.reference, "path": str(artifact.path)}, artifact.reference)
    return 0
