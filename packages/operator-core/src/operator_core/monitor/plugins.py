"""Subjects and checkers written in Python, named in ``operator.toml`` as ``module:factory``."""

from __future__ import annotations

import importlib
import inspect
from typing import Any, NamedTuple

from operator_core.errors import ConfigError
from operator_core.model.invariant import Subject
from operator_core.monitor.protocols import InvariantCheckerProtocol, SubjectProtocol

__all__ = ["Plugin", "load_plugin"]


class Plugin(NamedTuple):
    """A loaded subject and its checker; one object may be both."""

    subject: SubjectProtocol
    checker: InvariantCheckerProtocol


def load_plugin(spec: Subject) -> Plugin:
    """Import and call the factories of a subject.

    A factory is a class or a function. One that has exactly one parameter without a default is given the
    :class:`Subject`, any other is called without arguments. Without ``checker`` the subject must be its own checker.

    Raises:
        ConfigError: Something cannot be imported or called, or does not do what its protocol asks for.
    """
    if spec.plugin is None:
        raise ConfigError(f'The subject {spec.name!r} names no plugin; set `plugin = "module:factory"`.')
    subject = _make(spec, "plugin", spec.plugin)
    if not isinstance(subject, SubjectProtocol) or not inspect.iscoroutinefunction(subject.observe):
        raise _unfit(spec, "plugin", spec.plugin, "`async def observe(self) -> dict`")
    checker = subject if spec.checker is None else _make(spec, "checker", spec.checker)
    if not isinstance(checker, InvariantCheckerProtocol) or inspect.iscoroutinefunction(checker.check):
        if spec.checker is None:
            raise ConfigError(
                f'The subject {spec.name!r} has no checker: set `checker = "module:factory"`, '
                f"or give the object of {spec.plugin!r} a method `check(observation)`."
            )
        raise _unfit(spec, "checker", spec.checker, "`def check(self, observation) -> list`")
    return Plugin(subject, checker)


def _make(spec: Subject, key: str, name: str) -> Any:
    where = f"The {key} {name!r} of the subject {spec.name!r}"
    module_name, _, factory_name = name.partition(":")
    if not module_name or not factory_name:
        raise ConfigError(f'{where} is not of the form "module:factory".')
    try:
        factory: Any = importlib.import_module(module_name)
        for part in factory_name.split("."):
            factory = getattr(factory, part)
    except AttributeError:
        raise ConfigError(f"{where} does not exist: the module has no {factory_name!r}.") from None
    except Exception as error:
        raise ConfigError(
            f"{where} cannot be imported ({type(error).__name__}: {error}); install it where `operator` runs, "
            "or put its folder on PYTHONPATH."
        ) from error
    if not callable(factory):
        raise ConfigError(f"{where} is not a class or function that could be called.")
    try:
        return factory(spec) if _wants_spec(factory) else factory()
    except Exception as error:
        raise ConfigError(f"{where} cannot be created ({type(error).__name__}: {error}).") from error


def _wants_spec(factory: Any) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([p for p in parameters if p.default is p.empty and p.kind in positional]) == 1


def _unfit(spec: Subject, key: str, name: str, method: str) -> ConfigError:
    return ConfigError(f"The {key} {name!r} of the subject {spec.name!r} does not fit: its object needs {method}.")
