"""The manifest: immutable, content-addressed documents and small mutable pointers (see docs/manifest.md).

Only the store is imported here, which needs nothing but the standard library, so that listing the tasks
stays fast.
"""

from images.manifest.store import Conflict, FolderStore, NotFound, Store, open_store

__all__ = ["Conflict", "FolderStore", "NotFound", "Store", "open_store"]
