"""The small files of a model are small: libraries read them as a whole, and a sparse file of any size costs nothing.

require_small(Path("./model"))     before transformers or tokenizers reads it
"""

from pathlib import Path

from nemotron_shared.atomic import LARGEST_JSON, require_size

VOCABULARIES = ("tokenizer.json", "vocab.json")
LARGEST_VOCABULARY = 1024 * 2**20
"""Bytes; those of a million tokens take a hundredth of it to a tenth."""
LARGEST_TEMPLATE = 2**20
"""Bytes; those of published models are a hundred times smaller."""
MORE_TEMPLATES = "additional_chat_templates"
AGAIN = "download or copy the file again"


def require_small(folder: Path) -> None:
    """Refuse settings, vocabularies and chat templates beyond any that a model has.

    Raises:
        UserError: naming the file.
    """
    for file in sorted([*folder.iterdir(), *folder.glob(f"{MORE_TEMPLATES}/*")]):
        if file.suffix == ".jinja":
            require_size(file, LARGEST_TEMPLATE, AGAIN)
        elif file.suffix == ".json":
            require_size(file, LARGEST_VOCABULARY if file.name in VOCABULARIES else LARGEST_JSON, AGAIN)
