from nemotron_shared.data.world.chats import conversations as chats
from nemotron_shared.data.world.problems import sums
from nemotron_shared.data.world.prose import documents as pretrain_documents
from nemotron_shared.data.world.prose import held_out_prose as eval_texts


def problems(seed, count):
    return sums(seed, count, False)


def eval_problems(seed, count):
    return sums(seed, count, True)
