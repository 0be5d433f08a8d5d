"""Errors that a user can act on. The command lines print them as one line; anything else is a defect and shows a traceback."""


class UserError(ValueError):
    """Base of all errors for users: the message says where, what was found, what is allowed and what to do."""


class ConfigError(UserError):
    """A configuration names a field, type or value that is not allowed."""


class SourceError(UserError):
    """A source cannot be read as declared: a missing root, an empty glob, a missing column."""


class CorruptFileError(UserError):
    """A file's bytes are not those that its manifest recorded."""


class AccountingError(UserError):
    """A step's counts do not add up: some document is unaccounted for, so the step is not published."""


class ConflictError(UserError):
    """A directory belongs to another corpus or run."""


class PoisonError(UserError):
    """A document stops a step. The message holds its id and the kind of failure, never its text."""

    def __init__(self, message: str, step: str, source: str, document: str, reason: str) -> None:
        super().__init__(message, step, source, document, reason)  # all of them, so that it can be pickled
        self.step, self.source, self.document, self.reason = step, source, document, reason

    def __str__(self) -> str:
        return str(self.args[0])


class RemoteError(Exception):
    """An object store or a web server failed. Not the user's to mend: the task is tried again."""
