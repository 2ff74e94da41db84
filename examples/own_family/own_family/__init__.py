"""The family glm for meshc: the files beside this one."""

from importlib.resources import files

FOLDER = files(__name__)
