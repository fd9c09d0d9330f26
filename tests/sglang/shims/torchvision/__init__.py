"""Names without substance, for CPU tests only.

SGLang and transformers import torchvision for image inputs, and none fits the CPU build of torch.
Every submodule exists and every name in it is a class that cannot be used.
"""

import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.29.1"


class Unusable:
    """Stands for anything of torchvision."""

    def __init__(self, *args, **kwargs):
        raise RuntimeError("torchvision is not installed in this environment")


class _Names(type):
    """Attributes of a placeholder (members of an enumeration, say) are placeholders again."""

    def __getattr__(cls, name):
        return placeholder(name)


def placeholder(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Names(name, (Unusable,), {})


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = placeholder
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(_Submodules())
