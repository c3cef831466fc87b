"""What a model is, to the last attribute that its graphs depend on."""
