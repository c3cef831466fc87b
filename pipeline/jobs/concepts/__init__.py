"""Caches whose images stand in a file of the trainer: see ``tvae.pipeline.caches.concepts``."""
