"""What the drop-in raises: PyTorch raises RuntimeError where this package raises ValueError or TypeError, so be both."""


class ArgumentError(ValueError, RuntimeError):
    """A value, a shape or a combination that is refused."""


class ArgumentTypeError(TypeError, RuntimeError):
    """A type of elements that is refused."""
