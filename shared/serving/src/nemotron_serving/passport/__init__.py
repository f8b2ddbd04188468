"""The passport of an export: what was trained is what is served, shown on the weights themselves."""
