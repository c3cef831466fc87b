"""Caches that hold for a whole data set: the trainer numbers records by a table of all images, videos and captions, and
takes them where the table is the same, to the bit, as its own.

Read at tdrussell/diffusion-pipe 8f83dbf25d03219df705570ec03e62be04bc402f (``utils/dataset``, ``utils/cache``).
"""
