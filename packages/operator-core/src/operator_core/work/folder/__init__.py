"""The session folder of a task: where it is, and the files in it that people read."""

from __future__ import annotations

from operator_core.work.folder.session_folder import (
    SESSIONS,
    SessionFolder,
    brief_files,
    folder_name,
    place_file,
    short_id,
)

__all__ = ["SESSIONS", "SessionFolder", "brief_files", "folder_name", "place_file", "short_id"]
