"""Caching into shards: which samples stand already, and how new ones are staged, put in order and packed."""
