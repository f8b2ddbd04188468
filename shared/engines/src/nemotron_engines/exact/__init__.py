"""NemotronH with bit-identical results, whether decoded token by token or scored in one pass.

Libraries compute a token's log-probability twice, by different code: once when it is sampled, with a cache, and once
when it is trained, in a pass over whole sequences. Both are right but differ in the last bits, and sometimes the
router then picks another expert. Here both are the same computation:

- Each document has its own row, from position 0, padded on the right to whole blocks. Left padding and packing only
  say where the documents are (see `documents`).
- Matrix products use tiles of fixed shape (`layers`), so a row's result does not depend on the other rows.
- Attention sums blocks of keys in order; masked blocks add zero (`layers`).
- Mamba passes states on at block ends, and decoding recomputes the whole open block (`mamba`).
- Elementwise functions see whole vectors only: libraries treat the last elements of an array differently.

All of it assumes one thread, which `sampling.one_thread` ensures.
"""
