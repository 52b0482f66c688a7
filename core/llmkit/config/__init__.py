"""Configuration: frozen dataclasses by subject, merged from every source once (``sources``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmkit.config.cache import CacheConfig
from llmkit.config.limits import LimitsConfig
from llmkit.config.model import ModelConfig
from llmkit.config.observability import ObservabilityConfig
from llmkit.config.parallel import ParallelConfig
from llmkit.config.plugins import PluginConfig
from llmkit.config.scheduler import SchedulerConfig
from llmkit.config.server import ServerConfig
from llmkit.config.speculation import SpeculationConfig
from llmkit.config.tls import TlsConfig


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a deployment decides. Classes get their own section, not this."""

    model: ModelConfig = field(default_factory=ModelConfig)
    cache: CacheConfig = field(default_factory=CacheConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    speculation: SpeculationConfig = field(default_factory=SpeculationConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    plugins: PluginConfig = field(default_factory=PluginConfig)


__all__ = [
    "CacheConfig",
    "Config",
    "LimitsConfig",
    "ModelConfig",
    "ObservabilityConfig",
    "ParallelConfig",
    "PluginConfig",
    "SchedulerConfig",
    "ServerConfig",
    "SpeculationConfig",
    "TlsConfig",
]
