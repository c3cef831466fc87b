"""Inputs and outputs that are elsewhere, in the object stores and on the web servers of ``tvae.pipeline.stores``.

A run works on files of this machine, and that does not change. An input is fetched just before it is read, and
dropped after it; results are written to a folder of this machine, sent when they are complete, and dropped.
Whether a result is in the store already, and of the same source, VAE and options, is told from the first bytes of it.
"""
