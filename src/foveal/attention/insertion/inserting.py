from foveal.attention.insertion.attached import reattach  # noqa: F401  (old name, until tasks use the new one)
from foveal.attention.insertion.insert import insert  # noqa: F401
