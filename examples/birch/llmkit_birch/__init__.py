"""An example plugin: how a model named Birch thinks and calls tools."""
