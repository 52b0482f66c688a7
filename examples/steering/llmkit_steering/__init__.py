"""An example plugin: adds a direction to the activations of requests that ask for one."""
