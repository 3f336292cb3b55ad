"""Self-update of a checkout (row B-064): only when idle, only what is trusted, and back again when it does not work."""

from operator_dataverse.update.updater import Updater

__all__ = ["Updater"]
