"""`nemotron data inspect`: show what a prepared data set holds before a model is trained on it."""
