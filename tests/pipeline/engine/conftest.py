"""How hard hypothesis tries on the engine."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "engine",
    max_examples=25,
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],  # the first example of a test may compile size expressions
)
settings.load_profile("engine")
