"""Which output stages answers go through. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from llmkit.config import Config
from llmkit.contracts import Choice
from llmkit.frontend.stages import Stages
from llmkit.registry import Registry


def open_stages(config: Config, components: Registry) -> tuple[Stages, Sequence[Choice]]:
    """Those that were asked for, in that order, and their lines for the summary.

    :raises UnknownName: a name is nobody's.
    """
    names = config.model.output_stage
    makers = [(name, components.create("output_stage", name)) for name in names]
    return Stages(makers), [Choice("output_stage", name, "by name") for name in names]
