"""The HTTP server."""

from __future__ import annotations

from dataclasses import dataclass

from llmkit.config.fields import option, parse_size


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """Where it listens, whom it serves, what it logs and how it stops."""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(8000, "port to listen on", minimum=0, maximum=65535)
    uds: str | None = option(None, "Unix socket to listen on instead of host and port")
    api_key: tuple[str, ...] = option(
        (),
        "keys that clients must send as a bearer token or as x-api-key; may be repeated",
        secret=True,
        separator=None,  # a key may hold any character
    )
    api_key_file: str | None = option(
        None, "file of further keys, one a line, # begins a comment line; read again when it changes"
    )
    allowed_origins: tuple[str, ...] = option(
        (), "web origins that may call (CORS); none by default; may be repeated"
    )
    allowed_methods: tuple[str, ...] = option(("*",), "methods that these origins may use; may be repeated")
    allowed_headers: tuple[str, ...] = option(("*",), "headers that these origins may send; may be repeated")
    allow_credentials: bool = option(False, "these origins may send cookies and the like")
    root_path: str = option("", "path prefix that a proxy strips")
    forwarded_allow_ips: tuple[str, ...] = option(
        (),
        "addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed; * "
        "believes everybody; none by default; may be repeated",
    )
    shutdown_timeout: float = option(
        30.0, "seconds that running requests get after SIGTERM", minimum=0, maximum=86400
    )
    request_timeout: float | None = option(
        None,
        "seconds within which a request must end, waiting included; a client may lower it with "
        "X-Request-Timeout; none by default",
        minimum=0.001,
        maximum=86400,
    )
    sse_keepalive: float = option(
        15.0,
        "seconds of silence after which a stream gets a comment, so that proxies keep it open; 0: never",
        minimum=0,
        maximum=86400,
    )
    enable_log_requests: bool = option(False, "log every request's prompt size and parameters")
    enable_log_prompts: bool = option(False, "log the beginning of every request's prompt too")
    enable_admin_routes: bool = option(
        False, "serve the routes that change or show the server itself, such as /sleep and /server_info"
    )
    access_log: str = option(
        "off", "a line on standard output for each HTTP request", choices=("off", "text", "json")
    )
    max_stored_responses: int = option(
        1000, "responses of /v1/responses that are kept, the newest; 0 keeps none", minimum=0, maximum=1 << 20
    )
    max_stored_response_bytes: int = option(
        256 << 20, "bytes that kept responses may take together", parse=parse_size, minimum=0, maximum=1 << 40
    )
    strict_requests: bool = option(False, "refuse request fields that no schema knows; else the log warns")
    trust_request_chat_template: bool = option(
        False, "let requests bring a chat template of their own; it runs sandboxed and bounded"
    )
    response_role: str = option("assistant", "role of the answers in chats")
    log_level: str = option("info", "how much to log", choices=("debug", "info", "warning", "error"))

    @property
    def needs_key(self) -> bool:
        """Whether a client must send one."""
        return bool(self.api_key) or self.api_key_file is not None
