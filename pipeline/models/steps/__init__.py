"""Clips in steps: one chunk of a video VAE with its caches as inputs and outputs, a module per family.

A family's own loop over chunks keeps its caches in lists inside the model; here they are an explicit tuple of tensors,
so that a step is a function, one graph serves a clip of any length, and memory does not grow with it. The first step
of a clip takes no caches; every later one takes those that the step before returned, in the same number and shapes.
"""
