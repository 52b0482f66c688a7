"""Grammar backends: xgrammar and llguidance, and what each of them honours."""
