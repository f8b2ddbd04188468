"""Model folders made elsewhere, from a name to a checked artifact."""
