"""An example plugin: an output stage that takes e-mail addresses, card numbers and words out of answers."""
