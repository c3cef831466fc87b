"""The data structures: graphs, programs, rows along an axis."""
