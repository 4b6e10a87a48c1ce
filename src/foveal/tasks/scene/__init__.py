"""Task ``scene``: the class of a scene, from its map as a whole and from the regions of a trained detector."""

from foveal.tasks.scene.task import Scene

__all__ = ["Scene"]
