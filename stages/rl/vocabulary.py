"""Check that the models of a training have the same vocabulary, before one of them is loaded."""

from collections.abc import Iterator

from nemotron_data.tokenizers.folder import TokenizerFolder
from nemotron_shared.artifacts import Artifact
from nemotron_shared.engine.engine import Inputs
from nemotron_shared.system.errors import Finding, UserError, problem


def vocabulary_problems(inputs: Inputs) -> Iterator[Finding]:
    """A teacher or reward model whose tokens have other ids than those of the model that learns from it."""
    learner = inputs.get("model")
    for role in ("teacher", "reward_model"):
        found = inputs.get(role)
        if learner is None or found is None:
            continue
        try:
            if vocabulary_of("model", learner) != vocabulary_of(role, found):
                raise another_vocabulary(role, found)
        except UserError as error:
            yield problem(error.message, error.remedy)


def vocabulary_of(role: str, found: Artifact) -> dict[str, int]:
    """Ids of a model's tokens.

    Raises:
        UserError: its tokenizer is missing or damaged.
    """
    try:
        return TokenizerFolder(found.path).tokenizer.get_vocab()
    except UserError as error:
        raise UserError(f"run.{role}: {error.message}", "give it the tokenizer that it was trained with") from error


def another_vocabulary(role: str, found: Artifact) -> UserError:
    """The error about a model that would read the ids of the one in training as other tokens."""
    what = f"run.{role}: {found.reference} has another vocabulary than the model that learns from it"
    return UserError(what, "take one that was trained with the same tokenizer")
