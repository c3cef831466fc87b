"""Settings of the whole process that a call needs otherwise: borrowed, and given back."""
