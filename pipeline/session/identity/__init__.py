"""The identity of a model: a digest of everything that its graphs depend on."""
