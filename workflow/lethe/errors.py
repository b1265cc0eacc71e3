"""The one error a person is meant to read."""


class LetheError(Exception):
    """Bad input or an impossible request. The message is one line naming file, key or value; the exit code is 2."""
