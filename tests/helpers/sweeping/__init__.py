"""Random cells over families, sizes, lengths, types, budgets and orders of calls: made, checked, told."""
