"""How much memory a run may take, what it takes, and where what does not fit goes."""
