"""NemotronH with the same bits however it is computed: decoded token by token, or scored in one pass.

Libraries compute a token's log-probability twice, by different code: once when it is sampled, with a cache, and once
when it is trained, in a pass over whole sequences. Both are right and differ in the last bits, and sometimes the
router then picks another expert. Here both are one computation:

- A document stands in a row of its own, from position 0, filled up to whole blocks on the right. Left padding and
  packing only say where the documents are (see `documents`).
- Matrix products are made in tiles of fixed shape (`layers`), so that a row's result does not depend on the others.
- Attention adds up blocks of keys in their order; blocks behind the mask add zero (`layers`).
- Mamba hands states over at the ends of blocks, and decoding computes the open block again in its whole shape
  (`mamba`).
- Elementwise functions see whole vectors only: the last elements of an array take another path through the library.

All of it assumes one thread, which `sampling.one_thread` sees to.
"""
