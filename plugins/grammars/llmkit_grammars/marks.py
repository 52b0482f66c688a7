"""Texts of a structural tag that are one token of the model each, so that the token itself must come."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from llmkit.contracts import GrammarSpec

Part = dict[str, Any]

NO_TEXT = "\U0010ffff"
"""In what xgrammar takes for the text of a mark, for it takes no token without one: no answer has it. It is
excluded from free text, which would take any bytes."""


class Marks:
    """Those of one vocabulary; writes parts of a structural tag with tokens in the place of their texts.

    A part that needs none stays as it is.
    """

    def __init__(self, spec: GrammarSpec) -> None:
        self._ids = {text: token_id for text, token_id in spec.marks.items() if token_id not in spec.eos_ids}
        longest_first = sorted(spec.marks, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def written(self, part: Part) -> Part:
        """``part``, whose own parts are written already."""
        match part:
            case {"type": "any_text"} if self._any is not None:
                return {**part, "excludes": [*part.get("excludes", ()), NO_TEXT]}
            case {"type": "const_string", "value": str(value)} if self._in(value):
                return _sequence(self._pieces(value))
            case {"type": "tag", "begin": begin, "content": dict(content), "end": end} if self._in(
                begin, end
            ):
                return _sequence([*self._either(begin), content, *self._either(end)])
            case {"type": "tags_with_separator", "tags": [*tags], "separator": str(separator)}:
                if self._in(separator) or _have_tokens(tags):
                    return self._list(part, _or(tags), self._pieces(separator))
            case {"type": "triggered_tags", "triggers": [*triggers], "tags": [*tags]}:
                part = dict(part)
                beside = [piece for text in part.pop("beside", ()) for piece in self._pieces(text)]
                if self._any is not None:
                    part["excludes"] = [*part.get("excludes", ()), NO_TEXT]
                if self._in(*triggers) or _have_tokens(tags):
                    return _triggered(part, [*triggers, *part["excludes"]], _or(tags), beside)
        return part

    def _in(self, *texts: Any) -> bool:
        """Whether there is a mark in a text, or in one of a list of texts."""
        flat = [text for held in texts for text in (held if isinstance(held, list) else [held])]
        return self._any is not None and any(
            isinstance(text, str) and self._any.search(text) for text in flat
        )

    def _either(self, texts: Any) -> Sequence[Part]:
        """A text, one of several, or a token."""
        if isinstance(texts, dict):
            return [texts]
        if isinstance(texts, list):
            return [_or([_sequence(self._pieces(text)) for text in texts])]
        return self._pieces(texts)

    def _pieces(self, text: str) -> list[Part]:
        """An end token is left out: it comes where the text is complete, and ends it."""
        pieces: list[Part] = []
        at = 0
        for mark in self._any.finditer(text) if self._any is not None else ():
            pieces.append({"type": "const_string", "value": text[at : mark.start()]})
            if mark[0] in self._ids:
                pieces.append({"type": "token", "token": self._ids[mark[0]]})
            at = mark.end()
        pieces.append({"type": "const_string", "value": text[at:]})
        return [piece for piece in pieces if piece.get("value") != ""]

    @staticmethod
    def _list(part: Part, each: Part, separator: Sequence[Part]) -> Part:
        more = [] if part.get("stop_after_first") else [_star(_sequence([*separator, each]))]
        whole = _sequence([each, *more])
        return whole if part.get("at_least_one") else {"type": "optional", "content": whole}


def _triggered(part: Part, excluded: Sequence[str], call: Part, beside: Sequence[Part]) -> Part:
    """Text in which no trigger is spelt and marks may stand, and calls in it."""
    free: Part = {"type": "any_text", "excludes": list(excluded)}
    if beside:
        free = _sequence([free, _star(_sequence([_or(beside), free]))])
    needed = bool(part.get("at_least_one"))
    if part.get("stop_after_first"):
        return _sequence([free, call if needed else {"type": "optional", "content": call}])
    again = _sequence([call, free])
    return _sequence([free, *([again] if needed else []), _star(again)])


def _have_tokens(tags: Sequence[Any]) -> bool:
    """Whether tags were written in another form, for there are tokens in them."""
    return any(isinstance(tag, dict) and tag.get("type") != "tag" for tag in tags)


def _star(content: Part) -> Part:
    return {"type": "star", "content": content}


def _or(parts: Sequence[Part]) -> Part:
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": list(parts)}


def _sequence(parts: Sequence[Part]) -> Part:
    if not parts:
        return {"type": "const_string", "value": ""}
    return parts[0] if len(parts) == 1 else {"type": "sequence", "elements": list(parts)}
