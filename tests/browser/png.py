"""Reads the pixels of a PNG of 8 bits a channel, without interlacing, as browsers make them."""

import struct
import zlib

CHANNELS = {2: 3, 6: 4}


class Picture:
    def __init__(self, data):
        if data[:8] != b"\x89PNG\r\n\x1a\n":
            raise ValueError("not a PNG")
        at, packed = 8, b""
        while at < len(data):
            length, kind = struct.unpack(">I4s", data[at : at + 8])
            chunk = data[at + 8 : at + 8 + length]
            if kind == b"IHDR":
                self.width, self.height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunk)
                if depth != 8 or colour not in CHANNELS or interlaced:
                    raise ValueError(f"a PNG of another kind: {chunk!r}")
                self.channels = CHANNELS[colour]
            elif kind == b"IDAT":
                packed += chunk
            at += 12 + length
        self.rows = list(self.unfiltered(zlib.decompress(packed)))

    def unfiltered(self, raw):
        step, length = self.channels, self.width * self.channels
        before = bytearray(length)
        for row in range(self.height):
            start = row * (length + 1)
            kind, line = raw[start], bytearray(raw[start + 1 : start + 1 + length])
            if kind == 2:
                for at in range(length):
                    line[at] = (line[at] + before[at]) & 255
            elif kind:
                for at in range(length):
                    left = line[at - step] if at >= step else 0
                    above, corner = before[at], before[at - step] if at >= step else 0
                    guess = (None, left, above, (left + above) // 2, paeth(left, above, corner))[kind]
                    line[at] = (line[at] + guess) & 255
            yield line
            before = line

    def at(self, x, y):
        start = int(x) * self.channels
        return tuple(self.rows[int(y)][start : start + 3])

    def colours(self, left, top, right, bottom):
        """How many different ones there are in a rectangle."""
        inside = range(max(0, int(left)), min(self.width, int(right)))
        rows = range(max(0, int(top)), min(self.height, int(bottom)))
        return len({self.at(x, y) for y in rows for x in inside})


def paeth(left, above, corner):
    guess = left + above - corner
    return min((left, above, corner), key=lambda it: abs(guess - it))
