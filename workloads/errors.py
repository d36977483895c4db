"""Bad input: one clear line naming file, row, field, value and what was expected."""


class InputError(ValueError):
    """Raised for anything a user can fix in a file, a scenario or a flag; the command line exits with 2."""
