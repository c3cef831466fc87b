"""Program + budget -> schedule: segments, strips, buffers, and what all of it costs."""
