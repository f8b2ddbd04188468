"""Size limits for config and tokenizer files: libraries read them whole, and a sparse file of any size costs nothing.

require_small(Path("./model"))     before transformers or tokenizers reads it
"""

from pathlib import Path

from nemotron_shared.atomic import LARGEST_JSON, require_size

VOCABULARIES = ("tokenizer.json", "vocab.json")
LARGEST_VOCABULARY = 1024 * 2**20
"""In bytes; a vocabulary of a million tokens takes a hundredth to a tenth of it."""
LARGEST_TEMPLATE = 2**20
"""In bytes; templates of published models are a hundred times smaller."""
MORE_TEMPLATES = "additional_chat_templates"
AGAIN = "download or copy the file again"


def require_small(folder: Path) -> None:
    """Refuse settings, vocabularies and chat templates larger than any real model's.

    Raises:
        UserError: with the file.
    """
    for file in sorted([*folder.iterdir(), *folder.glob(f"{MORE_TEMPLATES}/*")]):
        if file.suffix == ".jinja":
            require_size(file, LARGEST_TEMPLATE, AGAIN)
        elif file.suffix == ".json":
            require_size(file, LARGEST_VOCABULARY if file.name in VOCABULARIES else LARGEST_JSON, AGAIN)
