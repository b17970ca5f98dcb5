"""The memory of this process, and Python's own figures."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from penstock.core.limits import MEBIBYTE

TOP_TYPES: Final = 20


class Memory(msgspec.Struct, rename="camel"):
    """Memory in MiB. The heap is the private memory of the process: used is the resident part, total the reserved one."""

    heap_used: int
    heap_total: int
    rss: int


class FullMemory(Memory):
    """Memory with the parts outside of the heap: mapped files, and shared memory."""

    external: int
    array_buffers: int


def read_memory() -> Memory:
    """Return the main figures."""
    figures = _figures()
    return Memory(figures["RssAnon"], figures["VmData"], figures["VmRSS"])


def read_full_memory() -> FullMemory:
    """Return all figures."""
    figures = _figures()
    return FullMemory(figures["RssAnon"], figures["VmData"], figures["VmRSS"], figures["RssFile"], figures["RssShmem"])


def collect() -> None:
    """Collect garbage, and return free memory to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # the C library of Alpine has none
    if trim is not None:
        trim(0)


class GcGeneration(msgspec.Struct, rename="camel"):
    """The work of Python's garbage collector in one generation."""

    collections: int
    collected: int
    uncollectable: int


class ObjectCount(msgspec.Struct):
    """The number of objects of a type."""

    type: str
    count: int


class Heap(msgspec.Struct, rename="camel"):
    """Python's own view of its heap."""

    allocated_blocks: int  #: blocks that the interpreter's allocator has given out
    tracked_objects: int  #: objects that the garbage collector tracks
    pending: list[int]  #: objects in each generation since its last collection
    generations: list[GcGeneration]
    top_object_types: list[ObjectCount]


def read_heap() -> Heap:
    """Count the objects on the heap. It visits every object, so it is slow."""
    objects = gc.get_objects()
    top = Counter(type(each).__qualname__ for each in objects).most_common(TOP_TYPES)
    return Heap(
        sys.getallocatedblocks(),
        len(objects),
        list(gc.get_count()),
        [GcGeneration(**stats) for stats in gc.get_stats()],
        [ObjectCount(name, count) for name, count in top],
    )


def _figures() -> dict[str, int]:
    figures = dict.fromkeys(("RssAnon", "VmData", "VmRSS", "RssFile", "RssShmem"), 0)
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(":")
            if name in figures:
                figures[name] = int(value.split()[0]) * 1024 // MEBIBYTE
    return figures
