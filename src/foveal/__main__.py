"""``python -m foveal``."""

from foveal.cli import main

if __name__ == "__main__":
    main()
