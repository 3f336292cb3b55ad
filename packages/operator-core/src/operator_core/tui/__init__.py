"""``operator top``: the board and a session in a terminal. It needs the extra ``tui``."""
