"""OneDrive: where it is, which session folders go into it, and their addresses in the web."""

from __future__ import annotations

from operator_dataverse.onedrive.discovery import Found, find_onedrive
from operator_dataverse.onedrive.links import folder_url, known_mounts
from operator_dataverse.onedrive.paths import path_looks_like_file
from operator_dataverse.onedrive.session_root import SessionRoot, find_session_root, session_root, with_session_root
from operator_dataverse.onedrive.web_urls import (
    Mount,
    graph_create_link_url,
    graph_item_url,
    local_path_to_web_url,
    web_url_to_local_path,
)

__all__ = [
    "Found",
    "Mount",
    "SessionRoot",
    "find_onedrive",
    "find_session_root",
    "folder_url",
    "graph_create_link_url",
    "graph_item_url",
    "known_mounts",
    "local_path_to_web_url",
    "path_looks_like_file",
    "session_root",
    "web_url_to_local_path",
    "with_session_root",
]
