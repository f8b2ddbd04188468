"""The next token of many sequences at once, from any causal model.

    logits, memory = prefill(model, [[1, 5, 9], [1, 7, 2]])      # prompts of one length
    sequences = sequences_of(model)
    sequences.add((memory, 3))
    logits = sequences.step(torch.tensor([4, 8]))                # (2, vocabulary)
    sequences.keep([1])                                          # the first one has ended

`direct` computes known architectures in few and large operations on preallocated memory; `general` asks any other
model of transformers as it is.
"""
