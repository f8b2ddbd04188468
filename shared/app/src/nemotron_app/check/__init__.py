"""`nemotron check`: whether a run shows what a healthy one shows, by expectations that lie beside its recipe."""
