"""The method Apptainer: an image from a recipe, layer by layer, from a Dockerfile, or one that is taken over."""
