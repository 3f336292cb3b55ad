"""Sections that packages beside this one bring."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import ClassVar

from operator_core.config.section import Section
from operator_core.errors import ConfigError

__all__ = ["Extension", "extension_models"]


class Extension(Section):
    """Base of a section that another package brings.

    Attributes:
        ENVIRONMENT: Name of a variable -> the key that it sets, beside ``OPERATOR_<SECTION>__<KEY>``.
    """

    ENVIRONMENT: ClassVar[Mapping[str, str]] = {}


@cache
def extension_models() -> Mapping[str, type[Extension]]:
    """The models of the sections that installed packages bring, by section.

    Raises:
        ConfigError: One of them cannot be imported.
    """
    models: dict[str, type[Extension]] = {}
    for point in entry_points(group="operator_core.settings"):
        try:
            models[point.name] = point.load()
        except Exception as error:
            package = point.dist.name if point.dist else point.value
            raise ConfigError(
                f"The package {package} is installed and broken ({type(error).__name__}: {error}); install it again."
            ) from error
    return models
