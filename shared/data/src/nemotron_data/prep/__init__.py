"""Prepare data in shards: a plan made from the inputs alone, workers that commit atomically, verified resume."""
