"""Job files: several runs as one TOML file, with a manifest of what was made. See README.md in this folder."""
