"""Routes of models that embed, classify or compare texts."""
