"""Every error llmkit raises on purpose.

LlmkitError
├── UsageError            what somebody typed cannot be honoured; exit code 2
│   └── UnknownName       a component name nobody registered
├── PluginError           a plugin broke its contract
│   └── DuplicateName     two plugins offer one name, or a built-in's name was taken
├── StartupError          the server cannot start with this model or machine; exit code 1
│   ├── ModelNotFound     no files behind a MODEL reference
│   ├── CheckpointError   files are there but corrupt, truncated or incomplete
│   ├── UnsupportedModel  an architecture, encoding or feature nobody here implements
│   └── OutOfMemory       weights or KV cache do not fit
├── RequestError          one request is wrong; the client gets a 4xx and nobody else notices
│   ├── ContextLengthExceeded
│   └── QueueFull         429, with Retry-After
│       └── OverBudget    one caller has too many tokens in flight
└── EngineError           the engine failed, not the request; 500
    ├── RequestTimeout    it took longer than allowed; 504
    ├── EngineDead        the engine process is gone
    ├── Sleeping          it gave its memory back until somebody wakes it up; 503
    └── Draining          the server is stopping; 503, with Retry-After

A message names the thing, the value, what is allowed and what to do. The CLI prints it as it is.
"""

from __future__ import annotations


class LlmkitError(Exception):
    """Base of all; ``exit_code`` is what a command that ends with it returns."""

    exit_code = 1


class UsageError(LlmkitError):
    """A flag, an environment variable, a file entry or an argument that cannot be honoured."""

    exit_code = 2


class UnknownName(UsageError):
    """No component of this kind has this name; the message lists those that exist."""


class PluginError(LlmkitError):
    """A plugin broke its contract; the message names plugin and distribution."""


class DuplicateName(PluginError):
    """A name is already registered; the message names both owners."""


class StartupError(LlmkitError):
    """The server cannot start."""


class ModelNotFound(StartupError):
    """No files were found behind a MODEL reference."""


class CheckpointError(StartupError):
    """A checkpoint is corrupt, truncated or incomplete."""


class UnsupportedModel(StartupError):
    """An architecture, weight encoding or feature that no chosen component implements."""


class OutOfMemory(StartupError):
    """Weights or KV cache do not fit the memory at hand."""


class RequestError(LlmkitError):
    """One request is wrong.

    ``param`` is the request field, ``code`` a short machine-readable word of OpenAI's, ``status`` the
    HTTP status.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class ContextLengthExceeded(RequestError):
    """Prompt and answer do not fit the context."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class QueueFull(RequestError):
    """The waiting queue is at its bound."""

    def __init__(self, message: str, *, retry_after_s: int = 1, code: str = "queue_full") -> None:
        super().__init__(message, code=code, status=429)
        self.retry_after_s = retry_after_s


class OverBudget(QueueFull):
    """One caller has as many tokens in flight as a key may."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="rate_limit_exceeded")


class EngineError(LlmkitError):
    """The engine failed while it worked on a request."""


class RequestTimeout(EngineError):
    """The request did not end within the time it was allowed."""


class EngineDead(EngineError):
    """The engine process is gone; requests in flight ended, new ones are refused."""


class Sleeping(EngineError):
    """The engine has given its memory back and takes no requests until it is woken up."""


class Draining(EngineError):
    """The server is shutting down and takes no new work."""
