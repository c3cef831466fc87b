"""The small VAE that comes with tvae, as a diffusers folder. README.md says what it is for."""

NAME = "builtin"
"""What it is called where a VAE is named."""
