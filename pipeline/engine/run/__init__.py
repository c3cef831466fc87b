"""Schedule + tensors -> tensors."""
