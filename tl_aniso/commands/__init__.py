"""What the commands of the command line do."""

__all__: list[str] = []
