"""Sources of rows: local files, object stores, the hub; blends of them; reading them row by row."""
