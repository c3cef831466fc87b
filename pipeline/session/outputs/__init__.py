"""What a model's own calls return, taken apart into tensors and put together again."""
