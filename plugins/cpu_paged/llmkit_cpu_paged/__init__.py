"""The CPU's parts: attention over paged KV, packed linear weights and fused small operations."""
