"""Module -> graph, by torch.export."""
