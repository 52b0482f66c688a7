"""Ten faults and more of each format of the first tier: those of its family, and its own."""

from __future__ import annotations

from tests.mutants.mutation import Mutant


def _in(module: str, *faults: tuple[str, str, str]) -> list[Mutant]:
    """Of one module: what is wrong, the text that is there, and what stands in its place."""
    return [Mutant(fault, module, old, new) for fault, old, new in faults]


# ---- families of calls ----

_READING = _in(
    "llmkit.parsers.reading",
    (
        "one character too few is held back",
        "held_back(self._text[max(self._at, certain - self._longest) :], ",
        "held_back(self._text[max(self._at, certain - self._longest) : -1], ",
    ),
    (
        "what turns out to be no call is lost",
        "                self.unread()\n                if not self._sure",
        "                self._kept.clear()\n                if not self._sure",
    ),
    ("blanks before text are swallowed", 'text = "".join(self._space) + rest', "text = rest"),
    ("blanks are not flushed", "if self._space and not self._any_call:", "if False:"),
    ("blanks between calls are content", "= isinstance(delta, ToolCallClosed)", "= False"),
    (
        "a call that is cut off is closed",
        "            except Malformed:\n",
        "            except Malformed:\n"
        "                if self._any_call and not self._after_syntax:\n"
        "                    self.closed()\n",
    ),
    ("a call is never closed", "self._sure(ToolCallClosed())", "self._kept.clear()"),
    ("only the first opener counts", "while opener := (yield", "if opener := (yield"),
)
_JSON_SCANNER = _in(
    "llmkit.parsers.json_scanner",
    (
        "a brace in a string ends it",
        "        at = _end_of(_PLAIN, text, at)\n",
        '        end = text.find("}", at)\n'
        "        if 0 <= end < _end_of(_PLAIN, text, at):\n"
        "            self._value_ended()\n"
        "            return end\n"
        "        at = _end_of(_PLAIN, text, at)\n",
    ),
    (
        "it ends with its first inner object",
        "self.done = not self._closers",
        "self.done = len(self._closers) < 2",
    ),
    ("a negative number is none", '"-": "minus", "0"', '"0"'),
    ("null is none", '"n": "ull"', '"n": "il"'),
    (
        "an escape that is cut is none",
        '"\\\\":\n            self._want = _ESCAPE',
        '"\\\\":\n            self._want = _STRING',
    ),
    ("a raw newline stays raw", 'f"\\\\u{ord(text[at]):04x}"', "text[at]"),
    ("an escape has five digits if it is cut", "self._hex_left = 4", "self._hex_left = 5"),
)
_JSON_CALLS = _in(
    "llmkit.parsers.json_calls",
    ("no arguments are nothing", 'self.arguments(arguments or "{}")', "self.arguments(arguments)"),
    (
        "a call is closed before its brace",
        "        elif not (yield from self.accept(",
        "        elif False and not (yield from self.accept(",
    ),
    ("half a pair is a name", "if _HALF_PAIR.search(value):", "if False:"),
)
_JSON_LIST = _in(
    "llmkit.parsers.json_calls",
    (
        "the second call of a list is ignored",
        '            comma = yield from self.accept(",")\n        yield from self.expect("]")',
        '            comma = ""\n        yield from self.expect("]")',
    ),
    ("a list needs no end", '        yield from self.expect("]")\n', ""),
)
_SCANNING = _in(
    "llmkit.parsers.scanning",
    (
        "one character too few is held back",
        "return len(text) - held_back(text[tail:], self.texts), ",
        "return len(text) - max(0, held_back(text[tail:], self.texts) - 1), ",
    ),
    (
        "what is held back is not flushed",
        "            self._content(self._text[self._at :])\n",
        "            pass\n",
    ),
    ("an opener that is cut is content", "elif place.head.may_begin(self._text, at):", "elif False:"),
    (
        "a mark that opens nothing is lost",
        "self._pass_on(at + len(mark))\n",
        "self._pass_on(at)\n        self._at += len(mark)\n",
    ),
    (
        "blanks before text are swallowed",
        "            self._out += [Content(blank) for blank in self._blank]\n",
        "",
    ),
    ("blanks are not flushed", "[Content(text) for text in self._blank]", "[]"),
    ("a call is never closed", "self._out.append(ToolCallClosed())", "pass"),
    (
        "a call that is cut off is closed",
        "        if not self._calls:\n",
        "        if self._calls and not self._at_edge:\n"
        "            self._close()\n"
        "        if not self._calls:\n",
    ),
    (
        "blanks between calls are content",
        "self._out.append(ToolCallClosed())\n        self._at_edge = True",
        "self._out.append(ToolCallClosed())",
    ),
)
_SECTION = _in(
    "llmkit.parsers.scanning",
    (
        "the second call of a section is ignored",
        "if head := matched(place.again, self._text, self._at):",
        "if False:",
    ),
    (
        "a section's end is content",
        "return self._go(self._prose, end.end())",
        "return self._go(self._prose, self._at)",
    ),
)
_MARKUP = _in(
    "llmkit.parsers.markup",
    ("no arguments are half an object", '"}" if self._keys else "{}"', '"}"'),
    (
        "the second call goes on with the first's arguments",
        "self._signatures.of(name), 0",
        "self._signatures.of(name), self._keys",
    ),
    (
        "a key's quotes are not escaped",
        "json.dumps(key[1].strip(), ensure_ascii=False)",
        "f'\"{key[1].strip()}\"'",
    ),
    ("no comma between arguments", '("{" if not self._keys else ", ")', '("{" if not self._keys else "")'),
    ("the schema's types do not matter", "kinds = self._signature.kinds(key[1].strip())", "kinds = ANY"),
    (
        "a cut end of a call ends nothing",
        "if may_begin((self._markup.key, *self._markup.call_ends, *self._place.ends), ",
        "if may_begin((self._markup.key,), ",
    ),
    (
        "an end of a value is read again",
        "return self._go(self._body, at + len(mark))",
        "return self._go(self._body, at)",
    ),
) + _in(
    "llmkit.parsers.schemas",
    ("text is not escaped", "            return json_inside(text)", "            return text"),
    ("what fits no type is lost", "or f'\"{json_inside(raw)}\"'", "or 'null'"),
)
_DELIMITED = _in(
    "llmkit.parsers.delimited",
    (
        "the second call goes on where the first ended",
        "        self._scanner = JsonScanner()\n        return",
        "        return",
    ),
    ("no arguments are nothing", '            self._arguments("{}")\n', ""),
    (
        "arguments that are no JSON are closed",
        "return self._go(self._prose, self._at) if self._scanner.failed else False",
        "if not self._scanner.failed:\n"
        "            return False\n"
        "        self._close()\n"
        "        return self._go(self._prose, self._at)",
    ),
    (
        "arguments are cut before they are complete",
        "        self._arguments(text)\n",
        "        self._arguments(text[:-1])\n",
    ),
)
_PYTHONIC = _in(
    "llmkit.parsers.pythonic",
    ("no arguments are nothing", '            self._arguments("{}")\n', ""),
    ("any list in prose is a call", "return not self._names and self._line_begins", "return True"),
    ("what was read of no literal is lost", "            self._content(self._value.held)\n", ""),
    (
        "a call that is cut behind a value ends",
        "if may_begin((_NEXT_KEY, _END), self._text, self._at):",
        "if False:",
    ),
) + _in(
    "llmkit.parsers.python_values",
    ("a quote in the other quotes ends a text", "[^{quote}\\\\]+", "[^'\\\"\\\\]+"),
    ("True stays True", '"True": "true", ', '"True": "True", '),
    ("an escaped newline is none", '{"n": "\\n", ', "{"),
    (
        "every bracket ends as a list",
        'out.append("}" if self._brackets.pop() == "{" else "]")',
        'self._brackets.pop()\n            out.append("]")',
    ),
    ("a key may be a number", "f'\"{value}\"' if self._is_key else value", "value"),
    (
        "text is not escaped",
        "        out.append(json_inside(plain.group()))",
        "        out.append(plain.group())",
    ),
)

# ---- formats of calls ----

_JSON_FORMATS = "llmkit_tool_parsers.json_formats"
_MARKUP_FORMATS = "llmkit_tool_parsers.markup_formats"
_DELIMITED_FORMATS = "llmkit_tool_parsers.delimited_formats"

TOOLS: dict[str, list[Mutant]] = {
    "hermes": [
        *_in(
            _JSON_FORMATS,
            ("the closing tag is content", "    closers=_TAGS[1:],\n", ""),
            ("another opening tag", "    openers=_TAGS[:1],\n", '    openers=("<tool_call",),\n'),
        ),
        *_in(
            "llmkit.parsers.json_calls",
            ("arguments as text are lost", "text = _decoded(text).strip()", 'text = ""'),
        ),
        *_READING,
        *_JSON_SCANNER,
        *_JSON_CALLS,
    ],
    "llama3_json": [
        *_in(
            _JSON_FORMATS,
            (
                "no tag",
                '        openers=("<|python_tag|>",),\n        bare',
                "        openers=(),\n        bare",
            ),
        ),
        *_in(
            "llmkit.parsers.json_calls",
            (
                "any object with a name is a call",
                "if not name or (bare and name not in self._names):",
                "if not name:",
            ),
            ("a name and an age are a call", '"type", "id")', '"type", "id", "age")'),
            ("parameters may come first", "if not streamed and bare:", "if False:"),
            (
                "parameters have another name",
                '_ARGUMENTS = ("arguments", "parameters")',
                '_ARGUMENTS = ("arguments", "arguments")',
            ),
            (
                "the second call is ignored",
                '        char = "{"\n        while char',
                '        char = "{"\n        if char',
            ),
        ),
        *_READING[:4],
        *_JSON_SCANNER[:5],
    ],
    "mistral": [
        *_in(
            _JSON_FORMATS,
            ("an id is a name", 'if (yield from self.accept("[CALL_ID]")):', "if False:"),
            ("a mark before arguments is none", '        yield from self.accept("[ARGS]")\n', ""),
            ("a list is no call", "yield from super().read_calls(opener)", "raise Malformed"),
            (
                "what follows a name is a call",
                "        if not (yield from self._streamed(name)):\n            raise Malformed\n",
                "        yield from self._streamed(name)\n",
            ),
        ),
        *_READING,
        *_JSON_SCANNER[:5],
    ],
    "granite": [
        *_in(_JSON_FORMATS, ("only one marker", '("<|tool_call|>", "<tool_call>")', '("<|tool_call|>",)')),
        *_READING[:6],
        *_JSON_SCANNER[:4],
        *_JSON_CALLS[:1],
        *_JSON_LIST,
    ],
    "phi4_mini_json": [
        *_READING[:6],
        *_JSON_SCANNER[:4],
        *_JSON_CALLS[:1],
        *_JSON_LIST,
    ],
    "qwen3_coder": [
        *_in(
            _MARKUP_FORMATS,
            ("newlines of a value stay", "        newline=newline,\n", ""),
            (
                "the outer tag may not be forgotten",
                "places=(Place(head, again=(again,), ends=ends), Place(_FUNCTION, ends=ends)),",
                "places=(Place(head, again=(again,), ends=ends),),",
            ),
            (
                "a value ends with its line alone",
                'value_ends=(line + "</parameter>", *(["</parameter>"] if newline else [])),',
                'value_ends=(line + "</parameter>",),',
            ),
        ),
        *_MARKUP,
        *_SCANNING,
        *_SECTION[1:],
    ],
    "glm45": [
        *_in(
            _MARKUP_FORMATS,
            (
                "a key may not be followed by a line",
                "literal(key[1]), SPACE, literal(value[0])",
                "literal(key[1]), literal(value[0])",
            ),
            ("a name ends with its line alone", r'r"(?=[<\n])"', r'r"(?=\n)"'),
        ),
        *_MARKUP[:3],
        *_MARKUP[4:],
        *_SCANNING,
    ],
    "minimax_m2": [
        *_in(
            _MARKUP_FORMATS,
            (
                "another end of a value",
                'value_ends=(f"</{prefix}parameter>",)',
                'value_ends=(f"</{prefix}parameter",)',
            ),
        ),
        *_MARKUP,
        *_SCANNING,
        *_SECTION,
    ],
    "deepseek_v31": [
        *_in(
            _DELIMITED_FORMATS,
            ("a call needs its section", "places=(*places, alone)", "places=(*places,)"),
            (
                "what is behind arguments is content",
                "            between=(Head(*behind),),\n            ends=(Head(passed",
                "            between=(),\n            ends=(Head(passed",
            ),
            ("nothing is passed over", '{{0,256}}+"', '{{0,9}}+"'),
        ),
        *_DELIMITED,
        *_SCANNING,
        *_SECTION[1:],
        *_JSON_SCANNER[:5],
    ],
    "kimi_k2": [
        *_in(
            _DELIMITED_FORMATS,
            (
                "a number is of the name",
                r'bare_name=r"(?:functions\.)?(.+?)(?::\d+)?"',
                r'bare_name=r"(?:functions\.)?(.+)"',
            ),
            ("a prefix is of the name", r'bare_name=r"(?:functions\.)?(.+?)', r'bare_name=r"(.+?)'),
            (
                "one spelling of a section",
                '"<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", ',
                '"<|tool_calls_section_begin|>", ',
            ),
        ),
        *_in(
            "llmkit.parsers.delimited",
            ("names stay as they are written", "written if name is None else name[1]", "written"),
        ),
        *_DELIMITED,
        *_SCANNING,
        *_SECTION[1:],
        *_JSON_SCANNER[:5],
    ],
    "harmony": [
        *_in(
            _DELIMITED_FORMATS,
            ("no call on a channel that comes first", "Head(literal(channel), header, *call), ", ""),
            ("no call behind the prompt's header", "header, *call), Head(*call))", "header, *call))"),
            (
                "no call without an end",
                "behind = [Head(SPACE, literal(end)) for end in ends]",
                "behind = [Head(SPACE, literal(ends[1]))]",
            ),
            ("a name has no dash", r'r"([\w.-]{1,128})"', r'r"(\w{1,128})"'),
        ),
        *_DELIMITED,
        *_SCANNING,
        *_SECTION[1:],
        *_JSON_SCANNER[:5],
    ],
    "pythonic": [*_PYTHONIC, *_SCANNING[1:], *_SECTION],
}

# ---- reasoning ----

_THINKING = _in(
    "llmkit.parsers.thinking",
    (
        "what is held back is not flushed",
        "return [Reasoning(held) if thinking else Content(held)] if held else []",
        "return []",
    ),
    ("thinking that is cut off is content", "[Reasoning(held) if thinking", "[Content(held) if thinking"),
    (
        "one character too few is held back",
        "- held_back(tail, self._texts), ",
        "- max(0, held_back(tail, self._texts) - 1), ",
    ),
    ("a call does not end thinking", "*tags.ends, *openers))", "*tags.ends))"),
    ("a call's opener is lost", "            self._at -= len(marker)\n", ""),
    ("a bracket opens a call", "if any(c.isalpha() for c in opener)", "if opener"),
    ("a newline behind the end is content", "NEWLINES_AFTER = 2", "NEWLINES_AFTER = 1"),
    ("a newline behind the start is thought", "NEWLINES_INSIDE = 1", "NEWLINES_INSIDE = 0"),
    ("a newline before the end is thought", '(*(f"\\n{end}" for end in tags.ends), ', "("),
    ("blanks come before no tag", "BLANKS_BEFORE = 2", "BLANKS_BEFORE = 0"),
    ("the prompt does not matter", "        self._continue(spec.prompt_tail)\n", ""),
    ("newlines that the prompt has count twice", "max(0, self._newlines - len(after))", "self._newlines"),
    (
        "a tag that is cut is text",
        "        if _may_become(self._text, start, self._first):\n            return False\n",
        "",
    ),
)

REASONING: dict[str, list[Mutant]] = {
    "deepseek_r1": [
        *_in(
            "llmkit.parsers.thinking",
            ("it cannot be switched off", "spec.template_args.get(name) is not False", "True"),
        ),
        *_in(
            "llmkit_reasoning_parsers.formats",
            ("it does not think first", "ALWAYS = Tags(thinks_first=True)", "ALWAYS = Tags()"),
        ),
        *_THINKING,
    ],
    "qwen3": [
        *_in(
            "llmkit_reasoning_parsers.formats",
            ("it thinks first", "MAYBE = Tags()", "MAYBE = Tags(thinks_first=True)"),
        ),
        *_in(
            "llmkit.parsers.thinking",
            (
                "tags in the answer begin thinking",
                "self._tags.starts if self._tags.anywhere else ()",
                "self._tags.starts",
            ),
        ),
        *_THINKING,
    ],
    "mistral": [
        *_in(
            "llmkit.parsers.thinking",
            ("it thinks only once", "self._tags.starts if self._tags.anywhere else ()", "()"),
        ),
        *_in("llmkit_reasoning_parsers.formats", ("another end", 'ends=("[/THINK]",)', 'ends=("[/THINK",)')),
        *_THINKING,
    ],
    "gptoss": _in(
        "llmkit_reasoning_parsers.harmony",
        (
            "what is held back is not flushed",
            "return [Reasoning(held) if",
            "return [] and [Reasoning(held) if",
        ),
        (
            "thinking that is cut off is content",
            "[Reasoning(held) if self._part is Part.REASONING",
            "[Content(held) if self._part is Part.REASONING",
        ),
        (
            "one character too few is held back",
            "- held_back(tail, ENDS)",
            "- max(0, held_back(tail, ENDS) - 1)",
        ),
        ("the prompt's header does not matter", "_part_of(self._prompted + header)", "_part_of(header)"),
        ("a call's header is lost", "            out.append(Content(header))\n", "            pass\n"),
        ("a call's end is lost", "raw = stop if self._part is Part.CALL else end", "raw = end"),
        ("every channel is the answer's", 'channel.startswith("analysis")', "False"),
        (
            "a header that is cut is content",
            "            if any(h.startswith(rest) for h in HEADERS):\n                return False\n",
            "",
        ),
        (
            "a header without an end is content at once",
            "            if len(self._text) - start < LONGEST_HEADER:\n                return False\n",
            "",
        ),
        ("a call is an answer", "if RECIPIENT in header:", "if False:"),
        (
            "a header ends no message",
            "ENDS = (END, RETURN, CALL, START, CHANNEL)",
            "ENDS = (END, RETURN, CALL)",
        ),
        ("the header before counts too", "    header = header[max(0, header.rfind(START)) :]\n", ""),
    ),
}
