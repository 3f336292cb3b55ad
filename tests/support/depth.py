"""How much of what could go on for ever is tried: a part on a laptop, all of it in continuous integration."""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest

__all__ = ["DEEP", "asked_of", "is_whole", "left_out"]

DEEP = os.environ.get("OPERATOR_DEEP_TESTS") == "1"
"""Whether all parameters are tried, and sweeps, storms and races go their whole length; `.ci/run` sets it."""

_BROAD = ("crash", "redteam")
"""Folders whose tests try the same at many places; of each test one parameter in four stays."""
_MANY = 4
_ENGINES = ("sqlite", "postgres")
_CONTAINERS = {"require_docker", "docker_image", "require_product_image"}


def is_whole(words: Sequence[str]) -> bool:
    """Whether a run is asked for by folders alone; who names a file or a test wants all of it."""
    return not any("::" in word or word.endswith(".py") for word in words)


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """What the short form does not try.

    That is what is marked ``deep`` or needs containers, and one of the two engines of a test. Of what is left three of
    four parameters of a test that is marked ``broad`` or is in a broad folder, and outside of the unit tests every
    other one of a test that has many. Which one stays is drawn from the name of the test: always the same, and not the
    first of each.
    """
    out, families = [], defaultdict(list)
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        broad = item.path.parent.name in _BROAD or item.get_closest_marker("broad") is not None
        engine = None if broad else params.get("store_url")
        deep = item.get_closest_marker("deep") is not None or _CONTAINERS & set(getattr(item, "fixturenames", ()))
        if deep or engine not in (None, _ENGINES[_drawn(item) % 2]):
            out.append(item)
        elif params and (broad or item.path.parent.name != "unit"):
            families[item.parent, _function(item), broad].append(item)
    for (*_, broad), family in families.items():
        one_in = 4 if broad else 2 if len(family) >= _MANY else 1
        stays = _drawn(family[0]) % min(len(family), one_in)
        out += [item for number, item in enumerate(family) if number % one_in != stays]
    return out


def _function(item: pytest.Item) -> str:
    """Its name without parameters."""
    return item.name.partition("[")[0]


def _drawn(item: pytest.Item) -> int:
    return zlib.crc32(_function(item).encode())


def asked_of(session: pytest.Session, module: str, parameter: str) -> list[Any]:
    """The values of a parameter that the tests of a module are asked to try in this run, each once."""
    calls = [
        item.callspec.params
        for item in session.items
        if isinstance(item, pytest.Function) and item.module.__name__ == module and hasattr(item, "callspec")
    ]
    return list({id(call[parameter]): call[parameter] for call in calls if parameter in call}.values())
