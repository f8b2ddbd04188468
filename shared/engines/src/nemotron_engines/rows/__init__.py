"""Prepared data as torch data sets, in an order that a resumed run repeats."""
