"""Names the packages of the wheel; all other metadata is in pyproject.toml.

The shipped tables lie in `tables/` of the checkout and are installed as `recguide_tables`, since
a top-level `tables` in site-packages would meet that of PyTables.
"""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(
            include=["recguide_cli*", "recguide_core*"], exclude=["*.weights*"]
        ),
        "recguide_tables",
    ],
    package_dir={"recguide_tables": "tables"},
)
