"""Whose commits this machine runs: what a trusted key has signed, or what a person has named by its id."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from operator_core.errors import SourceError
from operator_core.work.repository.git import git
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.update.checkout import Checkout

__all__ = ["why_not_trusted"]


async def why_not_trusted(checkout: Checkout, commit: str, mine: DataverseSettings) -> str | None:
    """Why a commit must not be run here; None: it may.

    A commit is trusted when `update_allowed` names it, or when it or a tag of it carries a signature that git can
    verify: SSH keys by the file `update_signers`, OpenPGP keys by the key ring of this account.
    """
    if commit in mine.update_allowed or not mine.update_signed:
        return None
    reasons: list[str] = []
    with tempfile.TemporaryDirectory(prefix="operator-keys-") as empty:
        signers = str(mine.update_signers) if mine.update_signers else os.devnull
        for command, name in (
            ("verify-commit", commit),
            *(("verify-tag", tag) for tag in await checkout.tags_of(commit)),
        ):
            try:
                await git(
                    checkout.folder,
                    "-c", f"gpg.ssh.allowedSignersFile={signers}", "-c", "gpg.minTrustLevel=marginal",
                    command, name,
                    env=_keyring(Path(empty)),
                )  # fmt: skip
            except SourceError as error:
                reasons.append(str(error))
            else:
                return None
    return (
        f"no trusted key has signed commit {commit[:12]} ({reasons[0]}); sign it, set `[dataverse] update_signers`, or "
        "name its full id in `update_allowed`"
    )


def _keyring(empty: Path) -> Mapping[str, str]:
    """Where gpg looks for keys: this account's ring, or an empty one."""
    home = os.environ.get("HOME")
    return {"GNUPGHOME": os.environ.get("GNUPGHOME") or (f"{home}/.gnupg" if home else str(empty))}
