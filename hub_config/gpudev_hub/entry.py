"""``gpu-dev-portal`` on a machine where only the small command is installed: one sentence, no traceback."""

import sys


def main() -> None:
    try:
        from gpudev_hub.command import main as command
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("gpudev_"):
            raise
        sys.exit(f"gpu-dev-portal needs {error.name}. Install it: pip install 'gpudev[hub,notebook]'")
    command()
