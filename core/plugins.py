"""Tables that installed packages extend: entries by name, and the entry points whose import adds to them.

    RULES = PluginTable("rule", METHODS, {"typical": …})    # of this package
    RULES.register("likelier", entry, Likelier)             # what a decorator does while a plug-in is imported
    RULES["likelier"]                                       # the first read imports the plug-ins

Only installed packages are imported: their metadata name the modules, and no folder of a model does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from importlib.metadata import EntryPoint, entry_points
from threading import Lock, RLock
from typing import Generic, TypeVar

from polydraft.core.errors import InvalidArgument

T = TypeVar("T")
MAX_QUOTED_ERROR = 300  # characters
log: logging.Logger = logging.getLogger("polydraft.plugins")


class PluginGroup:
    """Entry points of one name, whose modules are imported when a table of the group is first read.

    Args:
        name (str): Group of entry points in the metadata of packages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        # other threads wait until all plug-ins are there; plug-ins themselves may read the tables
        self.lock: AbstractContextManager[bool] = RLock()
        self.is_loaded: bool = False

    def entry_points(self) -> list[EntryPoint]:
        """Return the entry points of all installed packages, sorted, without importing anything."""
        return sorted(entry_points(group=self.name), key=lambda point: (point.name, point.value))

    def load(self) -> None:
        """Import every plug-in once; one that fails is left out with a warning that names it."""
        with self.lock:
            if self.is_loaded:
                return
            self.is_loaded = True
            try:
                for point in self.entry_points():
                    load_plugin(point)
            except BaseException:  # Ctrl-C: the rest is imported by the next read
                self.is_loaded = False
                raise


METHODS = PluginGroup("polydraft.methods")  # drafters and rules


def load_plugin(point: EntryPoint) -> None:
    """Import what an entry point names; warn if that fails, since other models and methods do not need it."""
    try:
        point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 (packages of others may raise anything)
        package = f" of the package {point.dist.name}" if point.dist is not None else ""
        log.warning(
            "note: the plug-in %r%s is left out, since importing %s failed (%s: %s); update or uninstall it",
            point.name, package, point.value, *describe_error(error),
        )  # fmt: skip


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return the kind and the beginning of the text of an error that the code of others raised, for a warning."""
    return type(error).__name__, str(error).strip().rstrip(".")[:MAX_QUOTED_ERROR]


class PluginTable(Mapping[str, T], Generic[T]):
    """Entries by name: those of this package, and behind them those that plug-ins and scripts register.

    Args:
        noun (str): Singular noun for an entry, for messages.
        group (PluginGroup): Plug-ins that may add entries.
        entries (Mapping[str, T]): Entries of this package.
    """

    def __init__(self, noun: str, group: PluginGroup, entries: Mapping[str, T]) -> None:
        self.noun: str = noun
        self.group: PluginGroup = group
        # those registered so far; replaced and never changed, since threads iterate
        self.entries: dict[str, T] = dict(entries)
        self.classes: dict[str, str] = {}  # full name of the registered class, by name of the entry
        # not the group's, which a thread may hold while it waits for a module that registers
        self.lock: AbstractContextManager[bool] = Lock()

    def __getitem__(self, name: str) -> T:
        self.group.load()
        return self.entries[name]

    def __iter__(self) -> Iterator[str]:
        self.group.load()
        return iter(self.entries)

    def __len__(self) -> int:
        self.group.load()
        return len(self.entries)

    def check_is_free(self, name: str, registered_class: type) -> None:
        """Check that a class may be registered under a name; it may again if it was before.

        A class of one module and name is the same class, as where a notebook's cell runs again.

        Args:
            name (str): Name of the entry.
            registered_class (type): Class that the entry is made from.

        Raises:
            InvalidArgument: The name is taken.
        """
        if name in self.entries and self.classes.get(name) != full_name(registered_class):
            owner = self.classes.get(name, "polydraft itself")
            raise InvalidArgument(f"the {self.noun} {name!r} exists already, by {owner}; choose another name.")

    def register(self, name: str, entry: T, registered_class: type) -> None:
        """Add an entry, or replace the earlier one of the same class.

        Args:
            name (str): Name of the entry.
            entry (T): The entry.
            registered_class (type): Class that the entry was made from.

        Raises:
            InvalidArgument: The name is taken.
        """
        with self.lock:
            self.check_is_free(name, registered_class)
            self.entries = self.entries | {name: entry}
            self.classes = self.classes | {name: full_name(registered_class)}


def full_name(registered_class: type) -> str:
    """Return the module and the name of a class."""
    return f"{registered_class.__module__}.{registered_class.__qualname__}"
