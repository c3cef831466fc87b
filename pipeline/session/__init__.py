"""One model at work: what it is, and what is kept for it."""
