"""Families of formats: a model's format of calls or of reasoning is mostly a table of one of them.

Public as its modules: the families ``json_calls``, ``markup``, ``pythonic``, ``delimited``, ``quoted`` and
``thinking``; ``reading`` and ``scanning``, of which another is made; ``tags``, which says what calls must
be. No torch.
"""
