"""What decides about an explorer is not where it can write (defect D-82)."""

from __future__ import annotations

from pathlib import Path

from tests.support import run_operator


def test_a_configuration_in_the_workspace_is_refused(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "SYSTEM_PROMPT.md").write_text("Go on.")
    (workspace / "operator.toml").write_text('[sandbox]\nbackend = "none"\n')
    refused = run_operator("explore", ".", "--engine", "scripted", cwd=workspace)
    assert refused.returncode == 2
    assert "is in the workspace" in refused.stderr
    (tmp_path / "alias.toml").symlink_to(workspace / "operator.toml")
    refused = run_operator("--config", str(tmp_path / "alias.toml"), "explore", str(workspace), cwd=tmp_path)
    assert "is in the workspace" in refused.stderr
    assert sorted(path.name for path in workspace.iterdir()) == ["SYSTEM_PROMPT.md", "operator.toml"]
