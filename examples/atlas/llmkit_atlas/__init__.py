"""An example plugin: how a model named Atlas calls tools."""
