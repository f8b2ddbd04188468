"""Configuration from YAML files, overrides, references and a typed schema, the same for every entry point."""
