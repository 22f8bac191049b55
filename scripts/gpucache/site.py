# SPDX-License-Identifier: BSD-2-Clause
"""What usage.Usage tells: of the code that asks for memory, of blocks, moments and columns."""
import collections

Block = collections.namedtuple("Block", "bytes site ns")
# Something that happened at a moment. kind: the name of a row of kinds.def.
Mark = collections.namedtuple("Mark", "ns kind bytes text site")
# ns: the highest moment. held: site -> bytes there. reserved: the device memory of the library and
# of blocks that the driver served, then.
Column = collections.namedtuple("Column", "ns held live reserved")


class Site:
    """Code that asks for memory, by its address."""
    __slots__ = ("num_allocs", "num_frees", "num_driver", "num_before", "bytes_total", "live",
                 "blocks", "most", "floor", "lives", "then", "moment")

    def __init__(self):
        self.num_driver = self.num_before = self.bytes_total = 0
        self.live = self.most = 0
        self.num_allocs = self.num_frees = self.blocks = 0  # known at the end
        self.floor = 0          # the least of a window
        self.then, self.moment = 0, -1  # what was live at this moment of Usage
        self.lives = [0] * 80   # by the binary digits of the life in ns

    def count(self, blocks, beside):
        """All is known; blocks: those that are live; beside: parts beside the pool."""
        self.num_frees, self.blocks = sum(self.lives), blocks + beside
        self.num_allocs = self.num_frees + blocks - self.num_before

    def median_life_ns(self):
        """Half of its blocks lived no longer; to a factor of two. None: none was freed."""
        half, seen = sum(self.lives) / 2, 0
        for digits, number in enumerate(self.lives):
            seen += number
            if number and seen >= half:
                return 3 << digits >> 2
        return None
