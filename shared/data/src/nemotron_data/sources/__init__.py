"""Where rows come from: files here, in a store or on the hub; blends of them; reading them row by row."""
