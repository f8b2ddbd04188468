"""One measuring function for each item of a card; a module for those that share their code."""
